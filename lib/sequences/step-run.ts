import type { NativePagedStep, NativeStepRun } from '#binding'

import { AttendCall, type AttendOptions } from '../attention/attend-call.js'
import { count } from '../border/check.js'
import { HostArray, type TensorData } from '../border/host-array.js'
import { nativeArgument } from '../border/owner.js'
import { type HostTensor, type OnnxTensor, put, readTensor, type TensorArgument, type TokenSource } from '../border/tensor.js'
import type { SharedCache } from './shared-cache.js'
import { Step } from './step.js'

/** What a run needs of its step. */
interface OpenStep {
  readonly shared: SharedCache
  readonly native: NativePagedStep
}

/**
 * @internal A step that is computed apart from its cache, for models that are run here. Nothing of it is exported.
 *
 * Until it ends, calls that change the bookkeeping of the cache alone go on: sequences are opened, forked, truncated and disposed of,
 * prompts are matched, snapshots taken, transactions begun and rolled back. Calls that touch pages throw `BUSY`: appends, writes, new
 * steps, and commits that move or quantise tokens. The sequences of the step refuse other changes with `TRANSACTION_OPEN`, as ever. To
 * dispose of one of them, of the step or of the cache is never refused; `end` is then.
 *
 * One call at a time: another one, or `end`, throws `BUSY` until the promise is settled.
 */
export class StepRun {
  readonly #step: OpenStep
  /** For work of the addon's own. */
  readonly native: NativeStepRun

  private constructor(step: OpenStep) {
    this.#step = step
    this.native = step.shared.native.runStep(step.native)
  }

  /** The run of an open step. There is one of a cache at a time: refused with `BUSY` while another one is out. */
  static of(step: Step): StepRun {
    return new StepRun(nativeArgument<OpenStep>('step', step, Step))
  }

  /**
   * Writes K and V of a layer and attends to it from `q`, in one call of the addon. Each is `[tokens, heads, headDim]` or
   * `[1, heads, tokens, headDim]`; the output has the queries' layout and dtype, as numbers or as bits.
   *
   * Arrays are copied before the call returns. Small work is done at once, the rest on a thread of the runtime's pool.
   */
  async attend(layer: number, q: TokenSource, k: HostTensor | OnnxTensor, v: HostTensor | OnnxTensor, options: AttendOptions = {}): Promise<TensorData> {
    const { native } = this
    const kv = { layer: count('layer', layer), hasSinkLogits: this.#step.shared.hasSinkLogits }
    const call = new AttendCall(q, kv, options, undefined)
    const [keys, values] = [readRows('k', k), readRows('v', v)]
    const answer = call.cross((queries, numbers, lists) => native.attend(queries, put(keys, 1, numbers), put(values, 2, numbers), numbers, lists))
    return answer ?? call.cross((queries, numbers, lists) => native.attendLater(queries, put(keys, 1, numbers), put(values, 2, numbers), numbers, lists))
  }

  /** Ends the run: its layers count as written, and the step may be committed. */
  end(): void {
    const { shared, native } = this.#step
    shared.native.endRun(native, this.native)
  }

  /** Ends the run if it has not: the step is as it was before, and still open. Never refused; what is being computed is computed to its end. */
  dispose(): void {
    this.native.dispose()
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
