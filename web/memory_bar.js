// A bar of memory on a node's face: what each stretch of work takes, against the device and the limit.
import { say } from "./words.js";

const NAME = "memory";
const ROW_HEIGHT = 18;
const MARGIN = 6;
const COLOURS = { weights: "#3d5a80", before: "#3d5a80", activations: "#4ea1ff", growth: "#4ea1ff", adapter: "#7a5195", outside: "#f4a259", streamed: null };
const HATCHED = "repeating-linear-gradient(135deg, #3d5a80 0 2px, transparent 2px 6px)";
const LIMIT = "#ff5d5d";
const empty = () => say("no_numbers", "Memory: no numbers before a run");

const GB = 2 ** 30;
const MB = 2 ** 20;
export const bytes = (count) => (count >= GB ? `${(count / GB).toFixed(2)} GB` : `${Math.round(count / MB)} MB`);
const percent = (part, whole) => `${(100 * part) / whole}%`;

function element(style, { text = "", title = "" } = {}) {
  const made = document.createElement("div");
  Object.assign(made.style, style);
  made.textContent = text;
  made.title = title;
  return made;
}

function segment(kind, size, scale) {
  const background = COLOURS[kind] ?? HATCHED;
  const made = element({ width: percent(size, scale), height: "100%", background }, { title: `${say(`kind_${kind}`, kind)} ${bytes(size)}` });
  made.dataset.kind = kind;
  made.dataset.bytes = size;
  return made;
}

function line(allowed, scale) {
  const style = { position: "absolute", left: percent(allowed, scale), top: "0", bottom: "0", width: "2px" };
  const made = element({ ...style, background: LIMIT }, { title: `${say("limit", "limit")} ${bytes(allowed)}` });
  made.dataset.limit = allowed;
  return made;
}

function row(load, allowed, scale) {
  const made = element({ display: "flex", alignItems: "center", gap: "6px", height: `${ROW_HEIGHT}px` });
  const track = element({ position: "relative", display: "flex", flex: "1", height: "10px", background: "#0006" });
  const parts = Object.entries(load.parts).filter(([, size]) => size > 0);
  track.append(...parts.map(([kind, size]) => segment(kind, size, scale)), line(allowed, scale));
  const cut = { overflow: "hidden", textOverflow: "ellipsis", whiteSpace: "nowrap" };
  const name = element({ width: "120px", ...cut }, { text: load.name, title: load.title ?? load.name });
  const peak = element({ width: "60px", textAlign: "right" }, { text: bytes(load.peak) });
  // In the theme's own colour, which is read on its ground.
  if (load.peak > allowed) Object.assign(peak.style, { fontWeight: "bold", textDecoration: `underline 2px ${LIMIT}` });
  made.append(name, track, peak);
  return made;
}

/** Rows of bars, one for each load: sizes in bytes. */
export function draw(box, { total, allowed, loads, sentence }) {
  const sums = loads.map(({ parts }) => Object.values(parts).reduce((sum, size) => sum + size, 0));
  const scale = Math.max(total, ...sums, 1);
  box.replaceChildren(...loads.map((load) => row(load, allowed, scale)));
  box.ariaLabel = sentence;
}

/** Adds an empty bar to a node; saved in no workflow and sent with no prompt. */
export function addMemoryBar(node) {
  const box = element({ font: "11px sans-serif", color: "var(--input-text, #ddd)", boxSizing: "border-box" });
  box.role = "img";
  box.ariaLabel = empty();
  const widget = node.addDOMWidget(NAME, "headroom_memory", box, { serialize: false, hideOnZoom: false, margin: MARGIN });
  widget.serialize = false;
  // As high as its rows (none before a run), where a widget with a layout would share the node's room with the text below.
  widget.computeLayoutSize = undefined;
  widget.computeSize = (width) => [width, box.childElementCount && ROW_HEIGHT * box.childElementCount + MARGIN];
}

/** A kind of work in the page's language, behind the number of its node if it has one. */
export const translated = (name) => name.replace(/\w+$/, (work) => say(`work_${work}`, work));

/** Shows the numbers of an output that has some. */
export function showMemoryBar(node, output) {
  const box = node.widgets?.find(({ name }) => name === NAME)?.element;
  const numbers = output?.headroom_bar?.[0];
  if (!box || !numbers) return;
  const { loads, ...more } = JSON.parse(numbers);
  draw(box, { ...more, loads: loads.map((load) => ({ ...load, name: translated(load.name), title: load.title ?? load.name })) });
  node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
}
