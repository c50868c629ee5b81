// Step runs: a step that another thread computes while its cache stays usable. Used by kvtide/onnx, and not exported.
import type { NativeLogits, NativePagedStep, NativeStepRun } from '#binding'

import { nativeArgument } from '../border/owner.js'
import type { SharedCache } from './shared-cache.js'
import { indexArgument, readStates, statesArgument } from './states.js'
import { Step } from './step.js'

/** The parts of a step that a run needs. */
interface OpenStep {
  readonly shared: SharedCache
  readonly native: NativePagedStep
}

/**
 * @internal A step that is computed apart from its cache, for models that kvtide runs. It is not exported.
 *
 * Until it ends, calls that change only the cache's bookkeeping are allowed: opening, forking, truncating and disposing of sequences,
 * matching prompts, taking snapshots, beginning and rolling back transactions. Calls that touch pages throw `BUSY`: appends, writes, new
 * steps, and commits that move or quantise tokens. The sequences of the step refuse other changes with `TRANSACTION_OPEN`, as in any
 * step. Disposing of one of them, of the step or of the cache is never refused; `end` is refused afterwards.
 *
 * One thread has the run at a time: while it is lent, `end` throws `BUSY`.
 */
export class StepRun {
  readonly #step: OpenStep
  /** The native run, for calls of the addon. */
  readonly native: NativeStepRun

  private constructor(step: OpenStep) {
    this.#step = step
    this.native = step.shared.native.runStep(step.native)
  }

  /** Begins the run of an open step. A cache has one run at a time: refused with `BUSY` while another one is open. */
  static of(step: Step): StepRun {
    return new StepRun(nativeArgument<OpenStep>('step', step, Step))
  }

  /** Copies the states that a sequence of the step had before it, as `step.readStates`. */
  readStates(index: number): Uint8Array {
    const at = indexArgument(index)
    return readStates(this.native, out => this.native.readStates(at, out))
  }

  /** Writes the states of a sequence after the step's tokens, as `step.writeStates`. */
  writeStates(index: number, bytes: Uint8Array): void {
    const [at, states] = statesArgument(index, undefined, bytes)
    this.native.writeStates(at, states)
  }

  /** Lends the run: its number makes a {@link LentRun}, on any thread of the process, once. `binding.unshare` takes back a number that was not used. */
  share(): number {
    return this.native.share()
  }

  /** The logits that a {@link LentRun} has copied for its owner. */
  logits(): NativeLogits {
    return this.native.logits()
  }

  /** Ends the run: its layers count as written, and the step may be committed. */
  end(): void {
    const { shared, native } = this.#step
    shared.native.endRun(native, this.native)
  }

  /** Ends the run if it is open, as if it had not begun; the step stays open. Never refused. A computation in progress runs to its end. */
  dispose(): void {
    this.native.dispose()
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose()
  }
}
