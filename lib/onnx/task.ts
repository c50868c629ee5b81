// Tasks, the scheduler's units of work, and the task of a call of `run`. Generations and second models have tasks of their own (generation, drafter).
import type { NativeLogits } from '#binding'

import { abortedBy, isKvTideError, KvTideError } from '../errors/errors.js'
import { binding } from '../loading/binding.js'
import type { TokenLogprobs } from '../sampling/options.js'
import type { RowToDraw } from '../sampling/sampler.js'
import type { Transaction } from '../sequences/transaction.js'
import type { SequenceState, SequenceUser } from './sequence-state.js'

/** @internal Drafted tokens. If a second model drew them with a sampler of its own, the logits of each, in a row of their own. */
export interface Drafted {
  readonly tokens: readonly number[]
  readonly drafts: readonly { readonly logits: NativeLogits; readonly row: number }[]
}

/** @internal */
export const NOTHING_DRAFTED: Drafted = { tokens: [], drafts: [] }

/** @internal The scheduler's unit of work: tokens of one sequence, for a generation, for a call of `run`, or as drafts for another model. */
export interface Task extends SequenceUser {
  readonly state: SequenceState
  /** Its place in the order of arrival. */
  readonly arrival: number
  isAdmitted: boolean
  /** True if its owner wants nothing more: it leaves before the next step. */
  readonly isEnded: boolean
  /** True if all requested tokens are computed. */
  readonly isDone: boolean
  /** True if it leaves at once when there is no room for it, instead of waiting. */
  readonly isOptional: boolean
  /** The number of tokens to compute; 0 while it is idle. */
  readonly pending: number
  /** The maximum number of drafted tokens to verify. */
  readonly draftsMax: number
  /** Throws if the task cannot continue. */
  check(): void
  /** Called right before each step that contains the task. Throws unless the cache has exactly its computed tokens. */
  prepare(): void
  /** Drafted tokens to verify, at most `most`. */
  drafted(most: number): Drafted
  /** The first position whose logits are wanted. */
  readonly firstRow: number
  /** The draw from a row and those behind it; `undefined` if the task wants logits. */
  toDraw(logits: NativeLogits, row: number, drafted: Drafted): RowToDraw | undefined
  /** Takes logits of the positions from `position` on, starting with a row. */
  take(logits: NativeLogits, row: number, position: number, count: number): void
  /** Counts a step that has computed so many of its tokens from a position on, and so many drafted ones behind them. */
  count?(from: number, tokens: number, drafted: number): void
  /** Takes drawn tokens, and true if nothing may follow them. Returns the number of those that are kept. */
  accept(tokens: readonly number[], logprobs: readonly TokenLogprobs[] | undefined, isOver: boolean): number
  /** Called when the task has left the scheduler: done, ended by its owner, or refused. */
  leave(error?: unknown): void
  /** Called when the task has left the scheduler because the cache is full and no blocks can be taken. Its own blocks are free afterwards. */
  outOfRoom(error: unknown): void
}

/** The tokens of a sequence in a call of `run`, and the positions of the sequence that the caller names. */
interface RunTokens {
  readonly tokens: Uint32Array
  readonly checkpoints: readonly number[]
}

/** @internal The share of one sequence in a call of `run`: computes its logits. */
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
  /** If the caller has a transaction open, one on top of it, and the number of computed tokens at its beginning. */
  #nested: { readonly transaction: Transaction; readonly computed: number } | undefined
  #resolve!: () => void
  #reject!: (error: unknown) => void

  constructor(state: SequenceState, { tokens, checkpoints }: RunTokens, arrival: number, isLast: boolean) {
    this.state = state
    this.arrival = arrival
    this.#length = state.log.length
    state.log.push(tokens)
    state.log.name(checkpoints)
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
    this.state.check()
    void this.#nested?.transaction.length
  }

  prepare(): void {
    this.check()
    this.state.checkComputed()
    if (this.#nested !== undefined) return
    const { computed } = this.state
    const transaction = this.state.nest()
    if (transaction !== undefined) this.#nested = { transaction, computed }
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

  /** Returns all logits that it has taken, as one array that is made in the background. Call it once. */
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
    this.#reject(
      this.#isCutOff
        ? new KvTideError('TRANSACTION_CLOSED', 'the transaction in which its tokens were computed has ended', {})
        : (error ?? abortedBy(undefined)),
    )
  }

  /** True if the caller's transaction has ended, and with it the tokens computed in it. */
  get #isCutOff(): boolean {
    try {
      void this.#nested?.transaction.length
      return false
    } catch (error) {
      return isKvTideError(error) && error.code === 'TRANSACTION_CLOSED'
    }
  }

  /** True if its computed tokens are in a transaction of its own, on top of one of the caller's. */
  get isNested(): boolean {
    return this.#nested !== undefined
  }

  /** Commits its computed tokens to the caller's transaction. */
  keep(): void {
    this.#nested?.transaction.commit()
    this.#nested = undefined
  }

  outOfRoom(error: unknown): void {
    this.#takeBack()
    this.leave(error)
  }

  /** Releases the sequence. If the call was refused, its computed tokens are rolled back. */
  settle(isDone: boolean): void {
    this.state.user = undefined
    if (!isDone) this.#takeBack()
  }

  #takeBack(): void {
    if (this.#nested !== undefined) {
      this.#nested.transaction.dispose()
      this.state.computed = Math.min(this.state.computed, this.#nested.computed)
      this.#nested = undefined
    }
    this.state.cut(this.#length)
  }
}
