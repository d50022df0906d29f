// The command "Will This Run Here?": what the open workflow would take on this card, its missing files included.
import { app } from "../../scripts/app.js";
import { allowed, fitted, insert, refused } from "./make_it_fit.js";
import { draw } from "./memory_bar.js";
import { nodesOn } from "./nodes.js";
import { say } from "./words.js";

const ID = "Headroom.WillItRun";
const TITLE = "Will this run here?";
const title = () => say("will_it_run", TITLE);
const CLASS = "headroom-will-it-run";
const GB = 2 ** 30;
const VERDICTS = {
  resident: () => say("resident", "Yes: all weights fit."),
  streams: () => say("streams", "Yes, slower: weights come from RAM at every step."),
  does_not_fit: () => say("does_not_fit", "No: it needs more than may be used of the card, or of the RAM."),
  or_tiles: () => say("or_tiles", "Not as it is: ComfyUI would run out of memory and go on in tiles, which give another result."),
};
const work = (stage) => say(`work_${stage.work}`, stage.work);
const close = () => say("close", "Close");

function element(tag, { style = {}, text = "", ...more } = {}) {
  const made = Object.assign(document.createElement(tag), more);
  Object.assign(made.style, style);
  made.textContent = text;
  return made;
}

/** The forecast of the open workflow. An Error with the server's sentence where there is none. */
async function asked() {
  const body = JSON.stringify({ prompt: app.rootGraph.serialize(), limit: allowed() });
  const headers = { "Content-Type": "application/json" };
  const response = await app.api.fetchApi("/headroom/estimate", { method: "POST", headers, body });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw refused(answer, response);
  return answer;
}

/** A node by its id; one inside a subgraph is shown by the node that the subgraph is. */
const nodeOf = (id) => nodesOn(id)[0];

/** Moves the view to a node, out of a subgraph if that is open. */
function lookAt(node) {
  const { canvas } = app;
  if (canvas.graph !== node.graph) canvas.setGraph(node.graph);
  canvas.centerOnNode(node);
}

function bars({ card_gb, allowed_gb, stages }) {
  const loads = stages.map((stage) => {
    const node = nodeOf(stage.node);
    const title = node ? `${work(stage)}: ${say("node", "node")} ${stage.node}, ${node.title}` : work(stage);
    const parts = { weights: (stage.weights_gb - stage.streamed_gb) * GB, streamed: stage.streamed_gb * GB, activations: stage.activations_gb * GB };
    return { name: node ? `${work(stage)} · ${node.title}` : work(stage), title, peak: stage.peak_gb * GB, parts };
  });
  const sentence = say("memory_of_stages", "Memory of each stage");
  const box = element("div", { role: "group", ariaLabel: sentence, style: { margin: "0 0 12px", fontSize: "12px" } });
  draw(box, { total: card_gb * GB, allowed: allowed_gb * GB, loads, sentence });
  [...box.children].forEach((row, at) => {
    row.firstChild.style.width = "240px";
    const node = nodeOf(stages[at].node);
    if (!node) return;
    row.style.cursor = "pointer";
    Object.assign(row, { role: "button", tabIndex: 0, onclick: () => lookAt(node) });
    row.onkeydown = ({ key }) => ["Enter", " "].includes(key) && lookAt(node);
  });
  return box;
}

function files({ absent }) {
  if (!absent.length) return [];
  const total = absent.reduce((sum, { gb }) => sum + gb, 0).toFixed(1);
  const list = element("ul", { style: { margin: "0 0 12px", paddingLeft: "20px" } });
  list.append(...absent.map(({ name, folder, gb }) => element("li", { text: `models/${folder}/${name}: ${gb.toFixed(1)} GB` })));
  return [element("p", { text: say("to_download", `To download, ${total} GB:`, { gb: total }), style: { margin: "0 0 4px" } }), list];
}

function dialog() {
  const made = element("dialog", {
    ariaLabel: title(),
    className: CLASS,
    tabIndex: -1, // a click on its text leaves the focus, and with it the keys, in here
    style: {
      margin: "auto", maxWidth: "min(760px, 90vw)", maxHeight: "85vh", overflow: "auto", padding: "20px", borderRadius: "8px",
      color: "var(--input-text, #ddd)", background: "var(--comfy-menu-bg, #222)", border: "1px solid var(--border-color, #444)",
      font: "14px sans-serif",
    },
  });
  made.addEventListener("close", () => made.remove());
  // The frontend takes the key for itself.
  made.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") made.close();
  });
  document.body.append(made);
  return made;
}

// ComfyUI listens for these of its keys before the dialog does, and would change the workflow behind it.
window.addEventListener(
  "keydown",
  (event) => {
    const isStep = (event.ctrlKey || event.metaKey) && ["z", "y"].includes(event.key.toLowerCase());
    if (isStep && document.querySelector(`dialog.${CLASS}[open]`)) event.stopImmediatePropagation();
  },
  { capture: true },
);

function button(text, onclick) {
  const style = {
    padding: "6px 14px", cursor: "pointer", borderRadius: "6px", color: "var(--input-text, #ddd)",
    background: "var(--comfy-input-bg, #222)", border: "1px solid var(--border-color, #444)",
  };
  return element("button", { text, onclick, type: "button", style });
}

async function putIn(shown, pressed) {
  pressed.disabled = true; // once
  try {
    const answer = await fitted();
    if (!shown.open) return;
    shown.close();
    await insert(answer);
  } catch (error) {
    shown.append(element("p", { text: error.message }));
  }
}

/** How long all of it takes: the report's line, or the same number in another language; empty where nobody knows. */
function timeOf({ text, seconds }) {
  const line = /^time .*$/m.exec(text)?.[0];
  if (!line) return "";
  const english = `${line[0].toUpperCase()}${line.slice(1)}.`;
  if (seconds === null) return say("time_by_step", english);
  const whole = Math.round(seconds);
  const [minutes, rest] = [Math.floor(whole / 60), seconds < 10 ? seconds.toFixed(1) : whole % 60];
  return minutes ? say("minutes", english, { minutes, seconds: rest }) : say("seconds", english, { seconds: rest });
}

function fill(shown, answer) {
  const verdict = answer.complete ? VERDICTS[answer.or_tiles ? "or_tiles" : answer.verdict]() : say("incomplete", "No clear answer: some nodes could not be predicted; the report lists them.");
  const report = element("pre", { text: answer.text, style: { whiteSpace: "pre-wrap", margin: "12px 0", fontSize: "12px" } });
  const details = element("details");
  details.append(element("summary", { text: say("all_of_report", "All of the report") }), report);
  const foot = element("div", { style: { display: "flex", gap: "8px", justifyContent: "flex-end" } });
  if (answer.verdict !== "resident") foot.append(button(say("make_it_fit", "Make It Fit"), ({ target }) => putIn(shown, target)));
  foot.append(button(close(), () => shown.close()));
  const [peak, least] = [answer.peak_gb, answer.least_vram_gb].map((gb) => gb.toFixed(1));
  const sizes = `${answer.card}: ${peak} GB with all weights in its memory; ${least} GB at least, where they stream from RAM.`;
  const time = timeOf(answer);
  shown.replaceChildren(
    element("h3", { text: `${title()} ${verdict}`, style: { margin: "0 0 8px" } }),
    element("p", { text: say("sizes", sizes, { card: answer.card, peak, least }), style: { margin: "0 0 4px" } }),
    ...(time ? [element("p", { text: time, style: { margin: "0 0 12px" } })] : []),
    bars(answer),
    ...files(answer),
    details,
    foot,
  );
  foot.lastChild.focus(); // the button that had it is gone, and Escape goes where the focus is
}

async function willItRun() {
  const shown = dialog();
  const going = say("going", "Reading the workflow; nothing is computed or downloaded …");
  shown.append(element("p", { text: going }), button(close(), () => shown.close()));
  shown.showModal();
  try {
    const answer = await asked();
    if (shown.isConnected) fill(shown, answer);
  } catch (error) {
    shown.firstChild.textContent = error.message;
  }
}

app.registerExtension({
  name: ID,
  commands: [{ id: ID, label: `${TITLE} (Headroom)`, icon: "pi pi-question-circle", function: willItRun }],
  menuCommands: [{ path: ["Edit"], commands: [ID] }],
  getCanvasMenuItems: () => [{ content: `${title()} (Headroom)`, callback: willItRun }],
});
