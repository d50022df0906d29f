// The command "Make It Fit": puts our nodes into the open workflow, by the same code as cli/fit.py. One undo takes them out.
import { app } from "../../scripts/app.js";
import { graphs, placeOf } from "./nodes.js";
import { say, sayTold } from "./words.js";

const ID = "Headroom.MakeItFit";
const TITLE = "Make It Fit";
const title = () => say("make_it_fit", TITLE);
const SECONDS = 10;
const MEASURED = 200; // milliseconds until nodes made of DOM elements have found their sizes
const LIMIT = `${ID}.Limit`;
const QUALITY = `${ID}.Quality`;

const setting = (id) => app.extensionManager.setting.get(id);

/** The share of the card that may be used. */
export const allowed = () => setting(LIMIT) ?? 0.85;

function toast(severity, detail) {
  app.extensionManager.toast.add({ severity, summary: title(), detail, life: 1000 * SECONDS });
}

/** What may be lost. */
export const quality = () => setting(QUALITY) ?? "exact";

/** What is said of an answer that has no sentence. */
const answers = ({ status }) => say("server_answers", `The server answered with HTTP ${status}.`, { status });

/** The error of an answer that is none, in the page's language where its sentence is known. */
export const refused = ({ error, told }, response) => new Error(error ? sayTold(error, told) : answers(response));

/** The lines of an answer's part, in the page's language. */
export const linesOf = ({ told, ...answer }, part) => [answer[part]].flat().map((line, at) => sayTold(line, told?.[part]?.[at]));

/**
 * The server's answer to the open workflow: what it would put in, `more` being asked too; with the tab's history, and its
 * state when it was asked. An Error with its sentence where it cannot.
 */
export async function fitted(more = {}) {
  const history = tracker();
  take(history);
  const state = history.activeState;
  const asked = { workflow: app.rootGraph.serialize(), limit: allowed(), quality: quality(), ...more };
  const headers = { "Content-Type": "application/json" };
  const response = await app.api.fetchApi("/headroom/fit", { method: "POST", headers, body: JSON.stringify(asked) });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw refused(answer, response);
  return { ...answer, more, history, state };
}

const tracker = () => app.extensionManager.workflow.activeWorkflow.changeTracker;

/** Takes the graph as the browser writes it for what the history has, so that its next look finds no change. */
function settle(history) {
  if (tracker() === history) history.activeState = JSON.parse(JSON.stringify(app.rootGraph.serialize()));
}

/** Has the open tab's history take what has changed since its last step. */
function take(history) {
  (history.captureCanvasState ?? history.checkState).call(history);
}

/** Sets a node's value as a step of its own in the history, and shows the node. */
export function setWidget(node, widget, value) {
  const history = tracker();
  take(history);
  widget.value = value;
  take(history);
  if (node.graph === app.canvas.graph) show([node]);
  node.setDirtyCanvas?.(true, true);
}

/** Loads a graph into the open tab as its history's next step: undo goes back to what was there. */
async function stepTo(graph) {
  const history = tracker();
  take(history);
  history.redoQueue.splice(0, history.redoQueue.length, graph);
  await history.redo();
  settle(history);
  await new Promise((resolve) => setTimeout(resolve, MEASURED));
  settle(history);
}

/** Selects nodes, and moves the view where the first is not whole in it. */
function show(nodes) {
  if (!nodes.length) return;
  const { canvas } = app;
  canvas.deselectAll?.();
  canvas.selectItems?.(nodes);
  const [left, top, width, height] = canvas.ds.visible_area;
  const { pos: [x, y], size: [w, h] } = nodes[0];
  const isWhole = x >= left && x + w <= left + width && y >= top && y + h <= top + height;
  if (!isWhole) canvas.centerOnNode(nodes[0]);
}

/** Puts in what the server answered, and says so; asks anew where the workflow is another by now. */
export async function insert(answer, again = true) {
  const { workflow, changed, more, history, state } = answer;
  if (tracker() !== history) {
    toast("warn", say("another_tab", "Another workflow was opened meanwhile: nothing was put into either. Ask again in the one that it is for."));
    return;
  }
  take(history);
  if (again && history.activeState !== state) return insert(await fitted(more), false);
  if (changed.length) {
    const before = new Set(graphs().flatMap(({ nodes }) => nodes.map(placeOf)));
    await stepTo(workflow);
    show(app.canvas.graph.nodes.filter((node) => !before.has(placeOf(node)))); // of a subgraph, if one is open
  }
  toast(changed.length ? "success" : "warn", ["summary", "changed", "notes"].flatMap((part) => linesOf(answer, part)).join("\n"));
}

async function makeItFit() {
  try {
    await insert(await fitted());
  } catch (error) {
    toast("error", error.message);
  }
}

const item = () => ({ content: `${title()} (Headroom)`, callback: makeItFit });
const takesPart = ({ type }) => ["MODEL", "VAE", "GUIDER"].includes(type);

app.registerExtension({
  name: ID,
  commands: [{ id: ID, label: `${TITLE} (Headroom)`, icon: "pi pi-gauge", function: makeItFit }],
  menuCommands: [{ path: ["Edit"], commands: [ID] }],
  settings: [
    {
      id: LIMIT,
      category: ["Headroom", TITLE, "Limit"],
      name: "Share of the card that Make It Fit may use",
      tooltip: "0.85: 85 %. Of the nodes that the command adds; those already there keep theirs.",
      type: "slider",
      attrs: { min: 0.1, max: 1, step: 0.05 },
      defaultValue: 0.85,
    },
    {
      id: QUALITY,
      category: ["Headroom", TITLE, "Quality"],
      name: "What Make It Fit may lose",
      tooltip: "exact: nothing. near_exact: 8-bit weights and 16-bit maps of the VAE. any: also 4-bit weights and feathered tiles.",
      type: "combo",
      options: ["exact", "near_exact", "any"],
      defaultValue: "exact",
    },
  ],
  getCanvasMenuItems: () => [null, item()],
  // Samplers, VAE nodes, loaders, and whatever else is on the way of a model or a VAE.
  getNodeMenuItems: ({ inputs, outputs }) => ([...(inputs ?? []), ...(outputs ?? [])].some(takesPart) ? [null, item()] : []),
});
