// The text of Memory Report on its face. The host shows a node's pictures by itself, its text only on nodes of its own.
import { app } from "../../scripts/app.js";

const NODE = "HeadroomReport";
const WIDGET = "text";

function show(node, output) {
  const widget = node?.widgets?.find(({ name }) => name === WIDGET);
  if (widget && output?.text) widget.value = output.text.join("\n");
}

app.registerExtension({
  name: "Headroom.MemoryReport",

  nodeCreated(node) {
    if (node.comfyClass !== NODE) return;
    const { widget } = app.widgets.STRING(node, WIDGET, ["STRING", { multiline: true }], app);
    widget.element.readOnly = widget.options.read_only = true;
    widget.serialize = widget.options.serialize = false; // neither saved in workflows nor sent with prompts
    node.setSize([560, 380]);
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
      if (node?.comfyClass === NODE) show(node, output);
    }
  },
});
