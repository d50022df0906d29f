// The command "Make It Fit": puts our nodes into the open workflow, by the same code as cli/fit.py. One undo takes them out.
import { app } from "../../scripts/app.js";

const ID = "Headroom.MakeItFit";
const TITLE = "Make It Fit";
const SECONDS = 10;
const MEASURED = 200; // milliseconds until nodes made of DOM elements have found their sizes

function say(severity, detail) {
  app.extensionManager.toast.add({ severity, summary: TITLE, detail, life: 1000 * SECONDS });
}

/** The server's answer to a workflow in the browser's format; an Error with its sentence. */
async function fitted(workflow) {
  const headers = { "Content-Type": "application/json" };
  const response = await app.api.fetchApi("/headroom/fit", { method: "POST", headers, body: JSON.stringify({ workflow }) });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the server answers HTTP ${response.status}`);
  return answer;
}

const tracker = () => app.extensionManager.workflow.activeWorkflow.changeTracker;

/** Takes the graph as the browser writes it for what the history has, so that its next look finds no change. */
function settle(history) {
  if (tracker() === history) history.activeState = JSON.parse(JSON.stringify(app.rootGraph.serialize()));
}

/** Loads a graph into the open tab as its history's next step: undo goes back to what was there. */
async function stepTo(graph) {
  const history = tracker();
  (history.captureCanvasState ?? history.checkState).call(history);
  history.redoQueue.splice(0, history.redoQueue.length, graph);
  await history.redo();
  settle(history);
  await new Promise((resolve) => setTimeout(resolve, MEASURED));
  settle(history);
}

async function makeItFit() {
  try {
    const { workflow, changed, notes, summary } = await fitted(app.rootGraph.serialize());
    if (changed.length) await stepTo(workflow);
    say(changed.length ? "success" : "warn", [summary, ...changed, ...notes].join("\n"));
  } catch (error) {
    say("error", error.message);
  }
}

app.registerExtension({
  name: ID,
  commands: [{ id: ID, label: `${TITLE} (Headroom)`, icon: "pi pi-gauge", function: makeItFit }],
  menuCommands: [{ path: ["Edit"], commands: [ID] }],
});
