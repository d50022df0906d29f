// Our reports on the nodes' faces, as text and as a bar. The host shows a node's pictures by itself, its text only on nodes of its own.
import { app } from "../../scripts/app.js";
import { addMemoryBar, showMemoryBar } from "./memory_bar.js";

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
const WITH_BAR = new Set(["HeadroomReport", "HeadroomEstimate", "HeadroomTrainingEstimate", "HeadroomFit"]);
const WIDGET = "text";

/** What a node will do, in the page's language, until it has a report. */
const promise = (node) => (node.constructor.nodeData?.description ?? "").split("\n\n")[0].replace(/\s+/g, " ");

function show(node, output) {
  const widget = node?.widgets?.find(({ name }) => name === WIDGET);
  if (widget && output?.text) widget.value = output.text.join("\n");
  if (WITH_BAR.has(node?.comfyClass)) showMemoryBar(node, output);
}

app.registerExtension({
  name: "Headroom.Reports",

  nodeCreated(node) {
    if (!NODES.has(node.comfyClass)) return;
    if (WITH_BAR.has(node.comfyClass)) addMemoryBar(node);
    const { widget } = app.widgets.STRING(node, WIDGET, ["STRING", { multiline: true }], app);
    widget.element.readOnly = widget.options.read_only = true;
    widget.serialize = widget.options.serialize = false; // neither saved in workflows nor sent with prompts
    widget.value = promise(node);
    node.setSize([560, Math.max(380, node.computeSize()[1] + 60)]);
    const onExecuted = node.onExecuted;
    node.onExecuted = function (output) {
      onExecuted?.call(this, output);
      show(this, output);
    };
  },

  // Results that come back with a tab or from the history.
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) {
      const node = app.rootGraph.getNodeById(id);
      if (NODES.has(node?.comfyClass)) show(node, output);
    }
  },
});
