// The blocks that tasks of one cache need: whether there are enough, and which sequences can give some back.
//
//     blocks of the cache   [ admitted tasks | spare sequences: reclaimed | sequences that their owners keep: never taken | free ]
//
// The answer for a task counts the same cached prefix that `SequenceState.resume` takes over when the task is admitted.
import { isKvTideError, type KvTideError } from '../errors/errors.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import { readPrompt } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { SequenceState, SequenceUser } from './sequence-state.js'
import type { Task } from './task.js'

/** @internal */
export class Room {
  readonly #shared: SharedCache
  readonly #stepTokens: number
  readonly #blockSize: number
  /** The number of blocks in the smallest group that keeps all tokens. */
  readonly #capacity: number
  /** Sequences whose blocks may be taken while they have this user, or none. */
  readonly #spare = new Map<SequenceState, SequenceUser | undefined>()

  constructor(cache: PagedKvCache, shared: SharedCache, stepTokens: number) {
    this.#shared = shared
    this.#stepTokens = stepTokens
    this.#blockSize = cache.blockSize
    const { pools } = cache.stats()
    this.#capacity = Math.min(
      ...pools.map(({ totalBlocks }, group) => (cache.groups[group]?.kind === 'full' ? totalBlocks : Infinity)),
    )
  }

  /** True if so many tokens of one sequence fit into the whole cache. */
  fits(tokens: number): boolean {
    return Math.ceil(tokens / this.#blockSize) <= this.#capacity
  }

  /** Returns the error for a task whose tokens do not fit beside other admitted tasks. Without others, it may take all free blocks. */
  shortage(task: Task, others: readonly Task[]): KvTideError | undefined {
    const growing = Float64Array.from([...others, task].flatMap(({ state }) => [state.sequence.id, state.pending]))
    const prefix = task.state.prefix(task.firstRow + 1)
    const { salt, saltFrom, extra } = readPrompt(task.state.names)
    const watermark = others.length === 0 ? -1 : others.length
    try {
      this.#shared.native.checkGrowth(
        growing,
        Float64Array.of(this.#stepTokens, watermark),
        prefix,
        salt,
        saltFrom,
        extra,
      )
      return undefined
    } catch (error) {
      if (isKvTideError(error) && error.code === 'OUT_OF_BLOCKS') return error
      throw error
    }
  }

  /** Notes that blocks of a sequence may be taken while it has this user; without one, whenever it has none, until it is forgotten. */
  spare(state: SequenceState, user?: SequenceUser): void {
    this.#sweep()
    const isKept = this.#spare.has(state) && this.#spare.get(state) === undefined
    if (!isKept) this.#spare.set(state, user)
  }

  /** Notes that a sequence no longer exists. */
  forget(state: SequenceState): void {
    this.#spare.delete(state)
  }

  /** Takes the blocks of one spare sequence. Returns false if none has any. */
  reclaim(): boolean {
    return this.#holding().some(state => state.release())
  }

  /** True if a generation that has ended has blocks that cannot be taken before its tokens are read, because a transaction is open. */
  get isBeingRead(): boolean {
    return this.#holding().some(({ user }) => (user?.unread?.length ?? 0) > 0)
  }

  #holding(): SequenceState[] {
    this.#sweep()
    return [...this.#spare].filter(([state, user]) => state.user === user && state.computed > 0).map(([state]) => state)
  }

  /** Forgets sequences that their owners use again or have disposed of. */
  #sweep(): void {
    for (const [state, user] of this.#spare)
      if (state.handle.isReleased || (user !== undefined && state.user !== user)) this.#spare.delete(state)
  }
}
