import type { NativeLogits } from '#binding'

import { KvTideError } from '../border/errors.js'
import { binding } from '../loading/binding.js'
import type { TokenLogprobs } from '../sampling/options.js'
import type { RowToDraw } from '../sampling/sampler.js'
import type { SequenceState, SequenceUser } from './sequence.js'

/** @internal Drafted tokens. Where a second model drew them with a sampler of its own, the logits of each, in a row of their own. */
export interface Drafted {
  readonly tokens: readonly number[]
  readonly drafts: readonly { readonly logits: NativeLogits; readonly row: number }[]
}

/** @internal */
export const NOTHING_DRAFTED: Drafted = { tokens: [], drafts: [] }

/** @internal Tokens of one sequence that the scheduler computes: for a generation, for a call of `run`, or drafts for another model. */
export interface Task extends SequenceUser {
  readonly state: SequenceState
  /** Its place in the order of arrival. */
  readonly arrival: number
  isAdmitted: boolean
  /** Whether its owner wants nothing more: it leaves before the next step. */
  readonly isEnded: boolean
  /** Whether all that was wanted is there. */
  readonly isDone: boolean
  /** Whether it leaves at once where there is no room for it, instead of waiting. */
  readonly isOptional: boolean
  /** How many tokens are to be computed; 0 while it rests. */
  readonly pending: number
  /** How many drafted tokens it would like to have judged. */
  readonly draftsMax: number
  /** Refused where it cannot go on. */
  check(): void
  /** Drafted tokens to judge, at most so many. */
  drafted(most: number): Drafted
  /** The first position whose logits are wanted. */
  readonly firstRow: number
  /** What is to be drawn from a row and those behind it; nothing where logits are wanted. */
  toDraw(logits: NativeLogits, row: number, drafted: Drafted): RowToDraw | undefined
  /** Takes logits: those of the positions from `position` on, from a row on. */
  take(logits: NativeLogits, row: number, position: number, count: number): void
  /** Takes tokens that were drawn; how many of them count. */
  accept(tokens: readonly number[], logprobs: readonly TokenLogprobs[] | undefined): number
  /** The task has left the scheduler: done, ended by its owner, or refused. */
  leave(error?: unknown): void
}

/** @internal One sequence of a call of `run`: its logits. */
export class RunTask implements Task {
  readonly state: SequenceState
  readonly arrival: number
  isAdmitted = false
  isEnded = false
  readonly isOptional = false
  readonly draftsMax = 0
  firstRow: number
  readonly #rows = new binding.NativeLogitRows()
  readonly done: Promise<void>
  readonly #length: number
  #resolve!: () => void
  #reject!: (error: unknown) => void

  constructor(state: SequenceState, tokens: Uint32Array, arrival: number, isLast: boolean) {
    this.state = state
    this.arrival = arrival
    this.#length = state.log.length
    state.log.push(tokens)
    this.firstRow = isLast ? state.log.length - 1 : state.computed
    state.user = this
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
  }

  get visible(): number {
    return this.#length
  }

  get pending(): number {
    return this.state.pending
  }

  get isDone(): boolean {
    return this.state.pending === 0
  }

  check(): void {
    void this.state.sequence.length
  }

  drafted(): Drafted {
    return NOTHING_DRAFTED
  }

  toDraw(): undefined {
    return undefined
  }

  take(logits: NativeLogits, row: number, position: number, count: number): void {
    this.#rows.add(logits, row, count)
    this.firstRow = position + count
  }

  /** All logits that it has taken, as one array that is made in the background. Once. */
  logits(): Promise<Float32Array> {
    return this.#rows.join()
  }

  accept(): number {
    return 0
  }

  end(): void {
    this.isEnded = true
  }

  leave(error?: unknown): void {
    if (this.isDone && error === undefined) return this.#resolve()
    this.#reject(error ?? new KvTideError('ABORTED', 'aborted by its signal', {}))
  }

  /** Frees the sequence; what a refused call has computed is taken back. */
  settle(isDone: boolean): void {
    this.state.user = undefined
    if (!isDone) this.state.cut(this.#length)
  }
}
