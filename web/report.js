// Our reports on the nodes' faces, as text and as a bar. The host shows a node's pictures by itself, its text only on nodes of its own.
import { app } from "../../scripts/app.js";
import { addMemoryBar, bytes, showMemoryBar, translated } from "./memory_bar.js";
import { graphs, isOfOpenTab, nodeAt, nodeIn, nodesOn, openTab, placeOf, store, tabOf } from "./nodes.js";
import { say } from "./words.js";

const NODES = new Set([
  "HeadroomReport",
  "HeadroomCast",
  "HeadroomCastCLIP",
  "HeadroomOffload",
  "HeadroomTraining",
  "HeadroomTrainingEstimate",
  "HeadroomEstimate",
  "HeadroomFit",
  "HeadroomCompare",
]);
/** Those that have a text only once there is a report: a picture or nothing stands there before. */
const VIDEO = "HeadroomVAEDecodeVideo";
const REPORTING = new Set([VIDEO, "HeadroomVAEEncodeVideo"]);
/** Those that Nodes 2.0 shows with an empty box, where their advanced inputs stand in the older look. */
const ROOMY = new Set([...REPORTING, "HeadroomVAE", "HeadroomVAEDecode", "HeadroomVAEEncode"]);
const FIT = "HeadroomFit";
const WITH_BAR = new Set(["HeadroomReport", "HeadroomEstimate", "HeadroomTrainingEstimate", FIT]);
const WIDGET = "text";
/** What ComfyUI calls the widget in which a canvas draws pictures. */
const DRAWN = "$$canvas-image-preview";
/** Of a new node, more than its text needs at least: a plan and what it took are read without scrolling. */
const ROOM = 140;
/** Of the node with the widest table, which is read without being broken. */
const WIDEST = 640;
/** Of a text beside a video, which takes what it gets: the report's first lines are read. */
const LEAST = 76;
/** Of a text that comes later: some lines more. */
const LATER = 60;

const reports = (node) => NODES.has(node?.comfyClass) || REPORTING.has(node?.comfyClass);

/** What a node will do, in the page's language, until it has a report. */
const promise = (node) => (node.constructor.nodeData?.description ?? "").split("\n\n")[0].replace(/\s+/g, " ");

/** Adds a text to a node; saved in no workflow and sent with no prompt. */
function addText(node, text) {
  const size = [...node.size];
  const { widget } = app.widgets.STRING(node, WIDGET, ["STRING", { multiline: true }], app);
  if (REPORTING.has(node.comfyClass)) widget.options.getMinHeight = () => LEAST;
  widget.element.readOnly = widget.options.read_only = true;
  widget.serialize = widget.options.serialize = false;
  widget.value = text;
  node.setSize([size[0], Math.max(size[1], node.computeSize()[1])]);
}

const textOf = (node) => node?.widgets?.find(({ name }) => name === WIDGET);

/** Lets the last preview of a node go, which the browser would take for the video that it shows instead, or put below it. */
function dropPreview(node) {
  const [place, outputs] = [placeOf(node), store("nodeOutput")]; // where Nodes 2.0 reads it
  if (outputs?.revokePreviewsByLocatorId) outputs.revokePreviewsByLocatorId(place);
  else delete outputs?.nodePreviewImages?.[place]; // the frontend of 0.18.2 offers no other way
  delete app.nodePreviewImages?.[place];
  delete node.imgs; // a canvas draws these
  const drawn = node.widgets?.find(({ name }) => name === DRAWN);
  if (drawn) node.removeWidget(drawn);
}

/** Takes a file that no browser plays off what the browser shows; the history has it. */
function dropUnplayed(node, output) {
  if (!output?.images?.some(({ filename }) => filename.endsWith(".mkv"))) return;
  for (const one of [output, app.nodeOutputs?.[placeOf(node)]]) {
    delete one?.images;
    delete one?.animated;
  }
}

/** The rows of each tab's last run, by its path: what it took stays when the plan is shown again. */
const measured = new Map();

function show(node, output) {
  if (node?.comfyClass === VIDEO) dropUnplayed(node, output);
  if (output?.text && !textOf(node)) {
    const height = node.size[1]; // a saved one has had its text
    addText(node, "");
    node.setSize([node.size[0], Math.max(height, node.computeSize()[1] + LATER)]);
  }
  if (output?.text) textOf(node).value = output.text.join("\n") + tookBehind(node);
  if (WITH_BAR.has(node?.comfyClass)) showMemoryBar(node, output);
  node?.setDirtyCanvas?.(true, true); // a drawn node's parts take their places
}

/** All nodes behind one, around the subgraph that it is in too. */
function behind(node, found = new Set()) {
  const { graph } = node;
  const links = (node.outputs ?? []).flatMap((output) => output.links ?? []).map((id) => graph.links.get(id));
  for (const { target_id: id } of links.filter(Boolean)) {
    const next = graph.getNodeById(id);
    if (!next) {
      const places = graphs().flatMap(({ nodes }) => nodes.filter(({ subgraph }) => subgraph === graph));
      places.forEach((place) => behind(place, found));
    } else if (!found.has(next)) {
      found.add(next);
      behind(next, found);
    }
  }
  return found;
}

/**
 * What a row's work took: by a card's own count, as the plan above has it; else the process's, in which Python and every
 * other model are too, and what was beyond the weights.
 */
function sizesOf({ measured: { highest, source }, live_bytes: live, paged_bytes: paged, predicted }) {
  const peak = bytes(highest + (paged ?? 0));
  if (source.startsWith("allocated")) return say("peak", `peak ${peak}`, { peak });
  const whole = say("peak_of_process", `peak ${peak} of ComfyUI in all`, { peak });
  if (!live || !predicted || predicted.bound) return whole;
  const [measured, expected] = [live, predicted.live].map(bytes);
  return `${whole}; ${say("beyond_weights", `beyond the weights ${measured}, predicted ${expected}`, { measured, expected })}`;
}

const headOfTook = () => `\n\n${say("it_took", "It took:")}\n`;

/** What the open tab's last run took behind a Make It Fit; empty of other nodes, and where nothing is known. */
function tookBehind(node) {
  const rows = node.comfyClass === FIT ? (measured.get(openTab()) ?? []) : [];
  const found = rows.length ? behind(node) : new Set();
  const lines = rows
    .filter((row) => row.outcome === "done" && row.measured && nodesOn(row.id).some((one) => found.has(one)))
    .map((row) => `${translated(`#${row.id} ${row.work}`)}: ${row.seconds.toFixed(1)} s, ${sizesOf(row)}`);
  return lines.length ? headOfTook() + lines.join("\n") : "";
}

/** What a run took, under the plan of each Make It Fit before it; in another tab, once that is opened again. */
async function showMeasured({ detail: { prompt_id: prompt } }) {
  const tab = tabOf(prompt);
  const fits = () => graphs().flatMap(({ nodes }) => nodes.filter(({ comfyClass }) => comfyClass === FIT));
  if (tab === openTab() && !fits().length) return;
  const response = await app.api.fetchApi(`/headroom/runs/${prompt}?none_too=1`);
  if (!response.ok) return;
  measured.set(tab, (await response.json()).rows);
  if (tab !== openTab()) return;
  for (const fit of fits()) {
    const text = textOf(fit);
    text.value = text.value.split(headOfTook())[0] + tookBehind(fit);
  }
}

/** What is undone when the next prompt begins. */
let undo = () => {};

/** An error of ours on the face of its node, in a text of its own where the node has none. */
function showError({ detail }) {
  const { prompt_id: prompt, node_id: path, node_type: kind, exception_message: sentence } = detail;
  const node = nodeAt(path);
  if (!kind?.startsWith("Headroom") || node?.comfyClass !== kind || !sentence || !isOfOpenTab(prompt)) return;
  const [before, size] = [textOf(node)?.value, [...node.size]];
  if (before === undefined) {
    addText(node, sentence.trim());
  } else {
    textOf(node).value = sentence.trim();
  }
  undo = () => {
    const same = nodeAt(path); // another object, once its tab was left
    const text = textOf(same);
    if (same?.comfyClass !== kind || text?.value !== sentence.trim()) return;
    if (before !== undefined) {
      text.value = before;
      return;
    }
    same.removeWidget(text);
    same.setSize(size);
  };
}

function begin({ detail }) {
  measured.delete(tabOf(detail.prompt_id));
  const last = undo;
  undo = () => {};
  last();
}

app.registerExtension({
  name: "Headroom.Reports",

  nodeCreated(node) {
    if (ROOMY.has(node.comfyClass) && app.extensionManager.setting.get("Comfy.VueNodes.Enabled")) addText(node, promise(node));
    if (!reports(node)) return;
    if (WITH_BAR.has(node.comfyClass)) addMemoryBar(node);
    if (NODES.has(node.comfyClass)) {
      addText(node, promise(node));
      node.setSize([node.comfyClass === "HeadroomCompare" ? WIDEST : 560, Math.max(380, node.computeSize()[1] + ROOM)]);
    }
    // A saved node keeps its size, which widgets that come with another widget's choice make as small as it can be.
    const onConfigure = node.onConfigure;
    node.onConfigure = function (saved) {
      onConfigure?.call(this, saved);
      if (saved.size) this.setSize([saved.size[0], Math.max(saved.size[1], this.computeSize()[1])]);
    };
    const onExecuted = node.onExecuted;
    node.onExecuted = function (output) {
      onExecuted?.call(this, output);
      if (this.comfyClass === VIDEO) dropPreview(this);
      show(this, output);
    };
  },

  setup() {
    app.api.addEventListener("execution_error", showError);
    app.api.addEventListener("execution_success", showMeasured);
    app.api.addEventListener("execution_start", begin);
  },

  // Results that come back with a tab or from the history.
  onNodeOutputsUpdated(outputs) {
    for (const [place, output] of Object.entries(outputs)) {
      const node = nodeIn(place);
      if (reports(node)) show(node, output);
    }
  },
});
