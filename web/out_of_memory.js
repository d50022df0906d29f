// When a prompt has run out of memory: what would help, with one click. The sentence is the server's (host/server/advised.py).
import { app } from "../../scripts/app.js";
import { fitted, insert } from "./make_it_fit.js";

const OFFER = "Headroom.OutOfMemory.Offer";
const ADVICE = /^Headroom: .*Make It Fit \(Headroom\)/m; // the command is what helps; of other ways the error tells
const PROMISE =
  "Make It Fit picks settings that fit this card without changing the picture; if none do, it stops and says what you would need.";

/** Whether the prompt that failed may be the open workflow's: another may have been opened since. */
function isOpen({ node_id, node_type }) {
  const [id, ...inside] = String(node_id).split(":");
  const node = app.rootGraph.getNodeById(id);
  return Boolean(node) && (inside.length > 0 || node.comfyClass === node_type);
}

async function offer({ detail }) {
  if (!ADVICE.test(detail?.exception_message ?? "")) return;
  if (!app.extensionManager.setting.get(OFFER) || !isOpen(detail)) return;
  const answer = await fitted().catch(() => undefined);
  if (!answer?.changed.length) return; // nothing to put in: the error itself says what to do
  const wanted = await app.extensionManager.dialog.confirm({
    title: "Out of memory: make it fit?",
    message: `Node ${detail.node_id} (${detail.node_type}) ran out of memory. ${PROMISE} Confirm puts in:`,
    itemList: answer.changed,
    hint: "Then queue it again. One undo takes it out.",
  });
  if (wanted) await insert(answer);
}

app.registerExtension({
  name: "Headroom.OutOfMemory",
  settings: [
    {
      id: OFFER,
      category: ["Headroom", "Out of memory", "Offer"],
      name: "Offer Make It Fit when a prompt runs out of memory",
      tooltip: "Without it the error still says what would help.",
      type: "boolean",
      defaultValue: true,
    },
  ],
  setup() {
    app.api.addEventListener("execution_error", offer);
  },
});
