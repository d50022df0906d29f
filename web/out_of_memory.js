// When a prompt has run out of memory: what would help, with one click. The sentence is the server's (host/server/advised.py).
import { app } from "../../scripts/app.js";
import { fitted, insert, linesOf, quality, setWidget } from "./make_it_fit.js";
import { isOfOpenTab, nodeAt } from "./nodes.js";
import { say } from "./words.js";

const OFFER = "Headroom.OutOfMemory.Offer";
const ADVICE = /^Headroom: .*Make It Fit \(Headroom\)/m; // the command is what helps; of other ways the error tells
const PROMISE_OF_CASTING =
  "Layerwise Casting (text encoder) keeps the text encoder's weights in 8 bits, about half of 16. The picture changes slightly.";
const PROMISE_OF_CHECKPOINTS =
  "Training Memory computes each block of the model again instead of keeping it. The gradients are the same; a step takes longer.";
/** What helps a node that Make It Fit does not plan: by which words of the advice, what the server is asked, what is promised. */
const REMEDIES = [
  {
    advice: /^Headroom: .*Layerwise Casting \(text encoder\) behind/m,
    asked: "text_node",
    promise: () => say("promise_of_casting", PROMISE_OF_CASTING),
  },
  {
    advice: /^Headroom: .*Training Memory in front of it/m,
    asked: "train_node",
    promise: () => say("promise_of_checkpoints", PROMISE_OF_CHECKPOINTS),
  },
];
/** Of a work that Make It Fit has planned: its node, and the limit that is advised instead of its own. */
const LESS = /^Headroom: .*Make It Fit \(node ([\w:]+)\).* a limit of ([\d.]*\d) instead of ([\d.]*\d)/m;
const PROMISE =
  "Make It Fit picks settings that fit this card without changing the picture; if none do, it stops and says what you would need.";
const PROMISE_OF_QUALITY =
  "Make It Fit picks settings that fit this card, within the quality that Settings allow; if none do, it stops and says what you would need.";
const promiseOfLess = (fit, now, was) =>
  `Make It Fit (node ${fit}) planned with ${was} % of the card; with ${now} % it looks for settings that take less.`;
const promise = () => (quality() === "exact" ? say("promise", PROMISE) : say("promise_of_quality", PROMISE_OF_QUALITY));

/** Whether the prompt that failed is the open workflow's: another may have been opened since. */
const isOpen = ({ prompt_id, node_id, node_type }) => isOfOpenTab(prompt_id) && nodeAt(node_id)?.comfyClass === node_type;

/** A queue of prompts that all run out of memory asks once. */
let asking = false;

/** Asks whether to do what is listed. */
function confirmed({ node_id: node, node_type: kind }, promise, doing, itemList) {
  const ran = say("ran_out", `Node ${node} (${kind}) ran out of memory.`, { node, kind });
  return app.extensionManager.dialog.confirm({
    title: say("out_of_memory", "Out of memory: make it fit?"),
    message: [ran, promise, doing].join(" "),
    itemList,
    hint: say("then_queue", "Then queue it again. One undo takes it back."),
  });
}

/** Lowers the limit of the Make It Fit that has planned what ran out of memory. */
async function offerLess(detail, [, fit, less, limit]) {
  const node = nodeAt(fit);
  const widget = node?.widgets?.find(({ name }) => name === "limit");
  if (node?.comfyClass !== "HeadroomFit" || Number(widget?.value).toPrecision(2) !== Number(limit).toPrecision(2)) return;
  const [now, was] = [less, limit].map((share) => Math.round(100 * share));
  const promise = say("promise_of_less", promiseOfLess(fit, now, was), { fit, now, was });
  const change = say("less", `node ${fit}, Make It Fit: limit ${less} instead of ${limit}`, { fit, less, limit });
  if (await confirmed(detail, promise, say("confirm_change", "Confirm to change:"), [change])) setWidget(node, widget, Number(less));
}

async function offer({ detail }) {
  const message = detail?.exception_message ?? "";
  const remedy = REMEDIES.find(({ advice }) => advice.test(message));
  const less = LESS.exec(message);
  if (!remedy && !less && !ADVICE.test(message)) return;
  if (asking || !app.extensionManager.setting.get(OFFER) || !isOpen(detail)) return;
  asking = true;
  try {
    await (less ? offerLess(detail, less) : offerNodes(detail, remedy));
  } finally {
    asking = false;
  }
}

/** Offers what helps a node: Make It Fit, or what stands in its place. */
async function offerNodes(detail, remedy) {
  const answer = await fitted(remedy ? { [remedy.asked]: String(detail.node_id) } : {}).catch(() => undefined);
  if (!answer?.changed.length) return; // nothing to put in: the error itself says what to do
  const said = remedy ? remedy.promise() : promise();
  if (await confirmed(detail, said, say("confirm", "Confirm to add:"), linesOf(answer, "changed"))) await insert(answer);
}

app.registerExtension({
  name: "Headroom.OutOfMemory",
  settings: [
    {
      id: OFFER,
      category: ["Headroom", "Out of memory", "Offer"],
      name: "Offer Make It Fit when a prompt runs out of memory",
      tooltip: "Of a text encoder, its Layerwise Casting is offered; of a training, Training Memory; behind Make It Fit, a smaller limit. Without it the error still says what would help.",
      type: "boolean",
      defaultValue: true,
    },
  ],
  setup() {
    app.api.addEventListener("execution_error", offer);
  },
});
