// The keys and values of encodings on the session thread, for the backend `parts`: attentions between subgraphs read them.
import type { NativeOnnxLayer } from '#binding'

import type { AttendOptions } from '../attention/attend-call.js'
import type { DType, TensorData } from '../border/host-array.js'
import type { HostTensor } from '../border/tensor.js'
import { attend } from '../paged/attend.js'
import type { EncodedStates } from './encoding.js'
import type { SessionEncodings } from './sessions.js'

/** Keys or values `[1, heads, frames, elements]`. */
interface Rows {
  readonly keys: HostTensor
  readonly values: HostTensor
}

const ELEMENTS: Readonly<Record<EncodedStates['type'], DType>> = { float32: 'f32', float16: 'f16' }

/** @internal The encodings of a model. */
export class CrossedRows {
  readonly #layers: readonly NativeOnnxLayer[]
  readonly #held = new Map<number, readonly Rows[]>()

  constructor(layers: readonly NativeOnnxLayer[]) {
    this.#layers = layers
  }

  /** Takes over the encodings of a step, which have keys and values in place of states. */
  take({ added, forget }: SessionEncodings): void {
    for (const number of forget) this.#held.delete(number)
    for (const { number, states } of added) this.#held.set(number, this.#rowsOf(states))
  }

  clear(): void {
    this.#held.clear()
  }

  /**
   * Attends from queries with tokens first, `[tokens, heads, elements]`, to the encodings of their sequences, of which sequence i has the tokens from `offsets[i]` to
   * `offsets[i + 1]`. The output has tokens first as well.
   */
  attend(
    layer: NativeOnnxLayer,
    q: TensorData,
    numbers: readonly number[],
    offsets: Int32Array,
    options: AttendOptions,
  ): TensorData {
    const { numHeads, headDim, valueHeadDim } = layer
    const tokens = offsets.at(-1) as number
    const out = alike(q, tokens * numHeads * valueHeadDim)
    for (const [place, number] of numbers.entries()) {
      const [start, end] = [offsets[place] as number, offsets[place + 1] as number]
      const { keys, values } = (this.#held.get(number) as readonly Rows[])[layer.layer] as Rows
      const shape = [1, numHeads, end - start, headDim]
      const own = turned(q.subarray(start * numHeads * headDim, end * numHeads * headDim), end - start, numHeads)
      const queries = { data: own, dtype: keys.dtype, shape } as HostTensor
      const found = alike(q, (end - start) * numHeads * valueHeadDim)
      attend(queries, { k: keys, v: values }, { ...options, causal: false }, found as Float32Array)
      out.set(turned(found, numHeads, end - start), start * numHeads * valueHeadDim)
    }
    return out
  }

  /** The keys and values of each layer, without the frames that a mask hides. */
  #rowsOf({ type, data, frames, mask }: EncodedStates): Rows[] {
    const kept = Array.from({ length: frames }, (_, frame) => frame).filter(frame => mask?.[frame] !== 0)
    let at = 0
    const side = (heads: number, dim: number): HostTensor => {
      const all = data.subarray(at, at + heads * frames * dim)
      at += heads * frames * dim
      const shape = [1, heads, kept.length, dim]
      if (kept.length === frames) return { data: all, dtype: ELEMENTS[type], shape } as HostTensor
      const own = alike(data, heads * kept.length * dim)
      for (let head = 0; head < heads; head++)
        for (const [place, frame] of kept.entries())
          own.set(
            all.subarray((head * frames + frame) * dim, (head * frames + frame + 1) * dim) as never,
            (head * kept.length + place) * dim,
          )
      return { data: own, dtype: ELEMENTS[type], shape } as HostTensor
    }
    return this.#layers.map(({ numKvHeads, headDim, valueHeadDim }) => ({
      keys: side(numKvHeads, headDim),
      values: side(numKvHeads, valueHeadDim),
    }))
  }
}

/** An array of the same kind. */
function alike<T extends TensorData>(data: T, length: number): T {
  return new (data.constructor as new (length: number) => T)(length)
}

/** @internal Rows `[outer, inner, elements]` as `[inner, outer, elements]`. */
export function turned<T extends TensorData>(rows: T, outer: number, inner: number): T {
  if (outer === 1 || inner === 1) return rows
  const to = alike(rows, rows.length)
  const dim = rows.length / (outer * inner)
  for (let one = 0; one < outer; one++)
    for (let other = 0; other < inner; other++) {
      const from = (one * inner + other) * dim
      to.set(rows.subarray(from, from + dim) as never, (other * outer + one) * dim)
    }
  return to
}
