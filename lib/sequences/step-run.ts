import type { NativeLogits, NativePagedStep, NativeStepRun } from '#binding'

import { nativeArgument } from '../border/owner.js'
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
 * One thread has it at a time: while it is lent, `end` throws `BUSY`.
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

  /** Lends the run: its number makes a {@link LentRun}, on any thread of the process, once. `binding.unshare` takes back what nobody has taken. */
  share(): number {
    return this.native.share()
  }

  /** The logits that a {@link LentRun} has left. */
  logits(): NativeLogits {
    return this.native.logits()
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
