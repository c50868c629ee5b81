import type { NativeLentRun } from '#binding'

import { AttendCall, type AttendOptions } from '../attention/attend-call.js'
import { count } from '../border/check.js'
import { HostArray, type DType, meta, type TensorData } from '../border/host-array.js'
import { type HostTensor, type OnnxTensor, put, readTensor, type TensorArgument, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'

/**
 * @internal A step run on the thread that computes it: by the number that {@link StepRun.share} gave, in any thread of the process. Each call is
 * done when it returns, so its thread is held up meanwhile.
 */
export class LentRun {
  readonly #native: NativeLentRun

  private constructor(native: NativeLentRun) {
    this.#native = native
  }

  /** Takes the run of a number, once. */
  static taken(number: number): LentRun {
    return new LentRun(binding.NativeLentRun.taken(number))
  }

  /**
   * K and V that a sequence of the step had in a layer before it, `[kvHeads, tokens, headDim]`, but those that left its window: as floats, or as
   * the bits of half floats that the pages have.
   */
  gather(layer: number, sequence: number, isFloats: boolean): { readonly k: TensorData; readonly v: TensorData } {
    const [k, v] = this.#native.gather(count('layer', layer), count('sequence', sequence), isFloats) as [TensorData, TensorData]
    return { k, v }
  }

  /** Writes K and V of a layer, as `step.write`. */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    this.#native.write(at, put(keys, 0), put(values, 1), meta)
  }

  /**
   * Writes K and V of a layer and attends to it from `q`, in one call of the addon. Each is `[tokens, heads, headDim]` or
   * `[1, heads, tokens, headDim]`; the output has the queries' layout and dtype, as numbers or as bits.
   */
  attend(layer: number, q: TokenSource, k: HostTensor | OnnxTensor, v: HostTensor | OnnxTensor, options: AttendOptions = {}): TensorData {
    // Whether the model has sink logits is not known here: whoever computes its graph gives them.
    const call = new AttendCall(q, { layer: count('layer', layer), hasSinkLogits: false }, options, undefined)
    const [keys, values] = [readRows('k', k), readRows('v', v)]
    return call.cross((queries, numbers, lists) => this.#native.attend(queries, put(keys, 1, numbers), put(values, 2, numbers), numbers, lists))
  }

  /** Copies rows of logits for the run's owner. */
  logits(data: TensorData, dtype: DType, rows: number, vocabulary: number): void {
    this.#native.logits(data, dtype, rows, vocabulary)
  }

  /** Gives the run back. Never refused. */
  dispose(): void {
    this.#native.dispose()
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose()
  }
}

/** Rows of K or V: three dimensions are those of tokens first. */
function readRows(argument: string, value: unknown): TensorArgument {
  const read = readTensor(argument, value)
  if (read instanceof HostArray && read.dims.length === 3) read.bshd = true
  return read
}
