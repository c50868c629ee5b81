// The errors for graphs that cannot be run because of one of their inputs, outputs or nodes.
import { type KvTideError, refusedGraph } from '../errors/errors.js'
import type { GraphRefusal } from '../errors/graph-advice.js'

/** @internal The error for a graph that cannot be run because of one of its inputs or outputs. */
export function refusedPort(
  node: string,
  operator: 'input' | 'output',
  reason: string,
  kind: GraphRefusal = operator,
): KvTideError<'UNSUPPORTED_GRAPH'> {
  return refusedNode(node, operator, reason, kind)
}

/** @internal The error for a graph that cannot be run because of one of its nodes. */
export function refusedNode(
  node: string,
  operator: string,
  reason: string,
  kind: GraphRefusal,
): KvTideError<'UNSUPPORTED_GRAPH'> {
  const problem = `the graph cannot be run at ${node} (${operator}): ${reason}`
  return refusedGraph(problem, { node, operator, reason, kind })
}
