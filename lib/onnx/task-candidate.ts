// Tasks as the policy sees them.
import type { CommonStarts } from './common-starts.js'
import type { Cuts } from './cuts.js'
import type { Candidate } from './policy.js'
import type { Task } from './task.js'

/** @internal True if a task has blocks, even if it is not admitted. */
export function isHolding({ isAdmitted, state }: Task): boolean {
  return isAdmitted || state.computed > 0
}

/** @internal A task, as the policy sees it. */
export class TaskCandidate implements Candidate {
  readonly #task: Task
  readonly #cuts: Cuts
  readonly #starts: CommonStarts

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
    return this.#task.draftsMax
  }

  get nextCut(): number | undefined {
    return this.#cuts.next(this.#task)
  }
}
