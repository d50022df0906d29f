// Nodes of the open workflow.
import { app } from "../../scripts/app.js";

/** The node that a prompt calls by its path: through the subgraphs that it is in. */
export function nodeAt(path) {
  let [graph, node] = [app.rootGraph];
  for (const id of String(path).split(":")) {
    node = graph?.getNodeById(id);
    graph = node?.subgraph;
  }
  return node;
}
