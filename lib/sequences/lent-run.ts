// The other end of a step run: the thread that computes a step reads and writes the pages of the cache through it.
import type { NativeLentRun, NativeStateNode } from '#binding'

import { AttendCall, type AttendOptions } from '../attention/attend-call.js'
import { count } from '../errors/check.js'
import { HostArray, type DType, meta, type TensorData } from '../border/host-array.js'
import {
  type HostTensor,
  type OnnxTensor,
  put,
  readTensor,
  type TensorArgument,
  type TokenSource,
} from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { indexArgument, readStates, statesArgument } from './states.js'

/**
 * @internal A step run on the thread that computes it. It is made from the number that {@link StepRun.share} returned, on any thread of the process. Calls are
 * synchronous and block that thread.
 */
export class LentRun {
  readonly #native: NativeLentRun

  private constructor(native: NativeLentRun) {
    this.#native = native
  }

  /** Takes over the run of a number, once. */
  static taken(number: number): LentRun {
    return new LentRun(binding.NativeLentRun.taken(number))
  }

  /**
   * Returns K and V of a sequence in a layer from before the step, `[kvHeads, tokens, headDim]`, without those that left its window: as floats, or as the
   * half-float bits of the pages.
   */
  gather(layer: number, sequence: number, isFloats: boolean): { readonly k: TensorData; readonly v: TensorData } {
    const [k, v] = this.#native.gather(count('layer', layer), count('sequence', sequence), isFloats) as [
      TensorData,
      TensorData,
    ]
    return { k, v }
  }

  /** Writes K and V of a layer, as `step.write`. */
  write(layer: number, k: TokenSource, v: TokenSource): void {
    const at = count('layer', layer)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    this.#native.write(at, put(keys, 0), put(values, 1), meta)
  }

  /**
   * Writes K and V of a layer and computes attention from `q` to it, in one call of the addon. Each is `[tokens, heads, headDim]` or
   * `[1, heads, tokens, headDim]`; the output has the queries' layout and dtype, as numbers or as bits.
   */
  attend(
    layer: number,
    q: TokenSource,
    k: HostTensor | OnnxTensor,
    v: HostTensor | OnnxTensor,
    options: AttendOptions = {},
  ): TensorData {
    // It is unknown here whether the model has sink logits: the code that runs the graph passes them.
    const call = new AttendCall(q, { layer: count('layer', layer), hasSinkLogits: false }, options, undefined)
    const [keys, values] = [readRows('k', k), readRows('v', v)]
    return call.cross((queries, numbers, lists) =>
      this.#native.attend(queries, put(keys, 1, numbers), put(values, 2, numbers), numbers, lists),
    )
  }

  /**
   * Computes the states of a layer for all sequences of the step, in their slots, and returns the layer's output. The inputs have the rows of all tokens, as floats or as
   * the bits of half floats.
   */
  computeStates(node: NativeStateNode, inputs: readonly (TensorData | undefined)[]): TensorData {
    return node.compute(this.#native, [...inputs])
  }

  /** Copies the states that a sequence of the step had before it, as `step.readStates`. */
  readStates(index: number): Uint8Array {
    const at = indexArgument(index)
    return readStates(this.#native, out => this.#native.readStates(at, out))
  }

  /** Writes the states of a sequence after the step's tokens, as `step.writeStates`. */
  writeStates(index: number, bytes: Uint8Array): void {
    const [at, states] = statesArgument(index, undefined, bytes)
    this.#native.writeStates(at, states)
  }

  /** Copies rows of logits for the run's owner. */
  logits(data: TensorData, dtype: DType, rows: number, vocabulary: number): void {
    this.#native.logits(data, dtype, rows, vocabulary)
  }

  /** Returns the run to its owner. Never refused. */
  dispose(): void {
    this.#native.dispose()
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose()
  }
}

/** Reads rows of K or V. Three dimensions mean that tokens come first. */
function readRows(argument: string, value: unknown): TensorArgument {
  const read = readTensor(argument, value)
  if (read instanceof HostArray && read.dims.length === 3) read.bshd = true
  return read
}
