// Nodes of the open workflow, and whose prompt it was.
import { app } from "../../scripts/app.js";

/** A store of the frontend's: it gives no other way to what is in there. */
export const store = (name) => document.querySelector("#vue-app")?.__vue_app__?.config?.globalProperties?.$pinia?._s?.get(name);

/** The graph and all its subgraphs. */
export const graphs = () => [app.rootGraph, ...(app.rootGraph.subgraphs?.values() ?? [])];

/** The nodes on the path by which a prompt calls one: the subgraphs that it is in, and itself. */
export function nodesOn(path) {
  const nodes = [];
  let graph = app.rootGraph;
  for (const id of String(path).split(":")) {
    nodes.push(graph?.getNodeById(id));
    graph = nodes.at(-1)?.subgraph;
  }
  return nodes;
}

/** The node that a prompt calls by its path. */
export const nodeAt = (path) => nodesOn(path).at(-1);

/** What the browser calls a node in its tables of results and pictures: a subgraph's once for all places that it is at. */
export const placeOf = ({ id, graph }) => (graph === app.rootGraph ? `${id}` : `${graph.id}:${id}`);

/** The node that it calls so. */
export function nodeIn(place) {
  const at = String(place).lastIndexOf(":");
  const graph = at < 0 ? app.rootGraph : app.rootGraph.subgraphs?.get(String(place).slice(0, at));
  return graph?.getNodeById(String(place).slice(at + 1));
}

/** The open tab's path. */
export const openTab = () => app.extensionManager.workflow.activeWorkflow?.path;

/** The path of the tab that queued a prompt; of the open one, where the browser does not know or the tab is gone. */
export function tabOf(prompt) {
  const path = store("execution")?.jobIdToSessionWorkflowPath?.get(String(prompt));
  return app.extensionManager.workflow.openWorkflows?.some((one) => one.path === path) ? path : openTab();
}

/** Whether a prompt is the open tab's, as far as the browser knows. */
export const isOfOpenTab = (prompt) => tabOf(prompt) === openTab();
