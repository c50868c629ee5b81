// Checks the logits that a graph returns.
import { KvTideError } from '../errors/errors.js'
import type { DType, TensorData } from '../border/host-array.js'
import { elementsOf, type RuntimeTensor } from './runtime.js'

/** The element types of logits, by onnxruntime's names. */
const TYPES: Readonly<Record<string, DType>> = { float32: 'f32', float16: 'f16', bfloat16: 'bf16' }

/** @internal Rows of logits that a graph returned: floats, or the bits of half floats. */
export interface LogitRows {
  readonly data: TensorData
  readonly dtype: DType
  readonly rows: number
  readonly vocabulary: number
}

/**
 * @internal Reads the logits of a call for `count` tokens: one row for each of them, or a single row for the last token if the head is pruned. Any other
 * shape is refused, because its rows could be taken for logits of other tokens.
 */
export function readLogits({ type, dims, data }: RuntimeTensor, count: number): LogitRows {
  const dtype = TYPES[type]
  if (dtype === undefined) throw refused(`logits are of type ${type}, expected ${Object.keys(TYPES).join(', ')}`)
  const vocabulary = dims.at(-1) ?? 0
  const rows = dims.slice(0, -1).reduce((product, dim) => product * dim, 1)
  // Only one dimension may be more than 1, the rows: the call has a single sequence.
  const isList = dims.slice(0, -1).every(dim => dim === 1 || dim === rows)
  const bits = elementsOf({ type, data })
  if (vocabulary > 0 && isList && (rows === count || rows === 1) && bits.length === rows * vocabulary)
    return { data: bits, dtype, rows, vocabulary }
  const size = vocabulary > 0 ? String(vocabulary) : 'vocabulary'
  throw refused(
    `logits are [${dims.join(', ')}] with ${bits.length} elements, expected [1, ${count}, ${size}], or [1, 1, ${size}] of the last token`,
  )
}

function refused(reason: string): KvTideError<'RUNTIME_FAILED'> {
  return new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed at logits: ${reason}`, { reason, node: 'logits' })
}
