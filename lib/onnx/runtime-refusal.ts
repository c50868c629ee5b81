// Turns failures of the runtime in the first calls of a graph into refusals of the graph: the runtime has no code for one of its nodes, or its sizes do not fit.
//
//     Non-zero status code returned while running Reshape node. Name:'node/x' Status Message: .. was false. The input tensor cannot be reshaped ..
//                                                 operator            node                                  reason
import { isKvTideError, type KvTideError } from '../errors/errors.js'
import { refusedNode } from './refused-node.js'

/** The start of its reasons. */
const RUNTIME = 'onnxruntime: '

/** @internal The refusal of a graph that the runtime did not compute. Other errors, such as a lack of memory, are returned as they are. */
export function refusalBy(error: unknown): unknown {
  if (!isKvTideError(error) || error.code !== 'RUNTIME_FAILED' || /alloc/i.test(error.details.reason)) return error
  const found = placeOf(error)
  if (found === undefined) return error
  const { node, operator, reason } = found
  const kind = operator === 'input' || operator === 'output' ? operator : 'form'
  return refusedNode(node, operator, `${RUNTIME}${reason}`, kind)
}

/** @internal True if the runtime could not compute a node: the graph does not run, whatever a faster backend lacks. */
export function isOfRuntime(error: unknown): boolean {
  if (!isKvTideError(error) || error.code !== 'UNSUPPORTED_GRAPH') return false
  const { reason, operator } = error.details
  return reason.startsWith(RUNTIME) && operator !== 'output'
}

/** The place of a failure, and the reason without it; `undefined` if the failure is not about a place of the graph. */
function placeOf({ details: { reason, node } }: KvTideError<'RUNTIME_FAILED'>) {
  const ran = /while running (\S+) node\. Name:\s*'([^']*)' Status Message: (.*)$/s.exec(reason)
  if (ran !== null) {
    const [, operator = '', name = '', message = ''] = ran
    // Behind the place in the runtime's own code and its condition.
    return { node: name, operator, reason: message.replace(/^.* was false\.\s*/s, '').trim() }
  }
  const given = /for input: (\S+)/.exec(reason)?.[1]
  if (given !== undefined) return { node: given, operator: 'input', reason }
  return node === undefined ? undefined : { node, operator: 'output', reason }
}
