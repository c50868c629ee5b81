// Tasks as the policy sees them.
import type { CommonStarts } from './common-starts.js'
import type { Cuts } from './cuts.js'
import type { Candidate } from './policy.js'
import type { StepPart } from './step-parts.js'
import { type Drafted, NOTHING_DRAFTED, type Task } from './task.js'

/** @internal True if a task has blocks, even if it is not admitted. */
export function isHolding({ isAdmitted, state }: Task): boolean {
  return isAdmitted || state.computed > 0
}

/** @internal A task, as the policy sees it while it decides on one step. */
export class TaskCandidate implements Candidate {
  readonly #task: Task
  readonly #cuts: Cuts
  readonly #starts: CommonStarts
  /** Its drafted tokens, once the policy has asked for their number. */
  #drafted: Drafted | undefined

  constructor(task: Task, cuts: Cuts, starts: CommonStarts) {
    this.#task = task
    this.#cuts = cuts
    this.#starts = starts
  }

  get isWaiting(): boolean {
    return this.#starts.isWaiting(this.#task)
  }

  get pending(): number {
    return this.#task.pending
  }

  get isAdmitted(): boolean {
    return this.#task.isAdmitted
  }

  get isHolding(): boolean {
    return isHolding(this.#task)
  }

  get drafts(): number {
    return this.#draft().tokens.length
  }

  get nextCut(): number | undefined {
    return this.#cuts.next(this.#task)
  }

  /** Its next tokens in a step, and the first of its drafted ones. */
  part(tokens: number, drafts: number): StepPart {
    const { log, computed } = this.#task.state
    return {
      task: this.#task,
      tokens: log.copy(computed, computed + tokens),
      drafted: drafts === 0 ? NOTHING_DRAFTED : firstOf(this.#draft(), drafts),
      draft: undefined,
    }
  }

  #draft(): Drafted {
    const most = Math.min(this.#task.draftsMax, this.#task.state.growth)
    return (this.#drafted ??= most <= 0 ? NOTHING_DRAFTED : this.#task.drafted(most))
  }
}

function firstOf({ tokens, drafts }: Drafted, most: number): Drafted {
  return { tokens: tokens.slice(0, most), drafts: drafts.slice(0, most) }
}
