// Merges attention over parts of the keys into attention over all of them, in one call of the addon. All parts are read before that call.
import { fields, isArray, list, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { META } from '../border/host-array.js'
import { put, readTensor, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { type AttendedWithLse, numbers, outputOf } from './attend-call.js'

const PARTS_MAX = 1 << 16

/**
 * Combines attention of the same queries over parts of the keys; the result equals one call over all keys. Use it for a prefix that
 * many sequences share, and a tail for each of them. No key may be in two parts, and only one part may have sink logits. NaN in a
 * part is NaN in the result. The weights of the parts are as precise as `lse`, a 32-bit float: if `lse` is in the millions, they are
 * only roughly right.
 *
 * @param parts the results of {@link attend} with `returnLse`, one for each part
 *
 * @example
 * ```ts
 * import { attend, mergeAttention } from 'kvtide'
 *
 * const rows = (...data: number[]) => ({ data: new Float32Array(data), shape: [1, 1, data.length, 1] })
 * const options = { causal: false, returnLse: true } as const
 * const prefix = attend(rows(0), { k: rows(1, 2), v: rows(10, 20) }, options)
 * const tail = attend(rows(0), { k: rows(3), v: rows(60) }, options)
 * console.log(mergeAttention([prefix, tail]).out.toArray()) // Float32Array [30]
 * ```
 */
export function mergeAttention(parts: readonly AttendedWithLse<TokenSource>[]): AttendedWithLse {
  if (!isArray(parts)) throw invalid('parts', parts, 'an array of { out, lse }')
  const read = list('parts', parts, readPart, PARTS_MAX)
  if (read.length === 0) throw invalid('parts', parts, 'at least one part')
  const descriptions = new Float64Array(read.length * META)
  const outs = read.map(({ out }, place) => put(out, place, descriptions))
  const answer = binding.mergeAttention(
    outs,
    read.map(({ lse }) => lse),
    descriptions,
    numbers,
  )
  const merged = answer as { readonly out: unknown; readonly lse: Float32Array }
  return { out: outputOf(merged.out), lse: merged.lse }
}

function readPart(argument: string, value: unknown): { out: ReturnType<typeof readTensor>; lse: Float32Array } {
  const { out, lse } = fields<AttendedWithLse>(argument, value)
  return { out: readTensor(`${argument}.out`, out), lse: typedArray(`${argument}.lse`, lse, ['Float32Array']) }
}
