// The ends of steps in the prompts of a model whose layers keep states: positions of checkpoints (checkpoints.ts decides them) for the prompt of each sequence. For
// other models there are none, and nothing is computed.
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import { readPrompt } from '../sequences/prompt.js'
import { checkpointsOf } from './checkpoints.js'
import { SeenPrompts } from './seen-prompts.js'
import type { SequenceState } from './sequence-state.js'

/** @internal The properties of a task that its checkpoints depend on. */
export interface CutTask {
  readonly state: Pick<SequenceState, 'computed' | 'hasTransaction' | 'log' | 'names' | 'reached'>
}

/** The positions in a prompt, ascending, and the number of tokens that it had in common with those before it. */
interface Placed {
  readonly positions: readonly number[]
  readonly seen: number
}

/** @internal The positions at which steps of prompts have to end. */
export class Cuts {
  readonly #blockSize: number
  readonly #seen: SeenPrompts | undefined
  /** The number of states that the cache has room for. */
  readonly #slots: number
  readonly #placed = new WeakMap<CutTask, Placed>()

  constructor(cache: Pick<PagedKvCache, 'blockSize' | 'groups' | 'stats'>) {
    const kinds: readonly string[] = cache.groups.map(({ kind }) => kind)
    const { pools } = cache.stats()
    this.#blockSize = cache.blockSize
    this.#slots = Math.min(
      ...pools.map(({ totalBlocks }, group) => (kinds[group] === 'state' ? totalBlocks : Infinity)),
    )
    this.#seen = kinds.includes('state') ? new SeenPrompts(cache.blockSize) : undefined
  }

  /**
   * Decides the positions in a prompt that is computed from its first pending token on: none in a transaction, in which no checkpoint is taken. O(tokens of the
   * prompt).
   */
  place(task: CutTask): void {
    const { computed, log, names, reached } = task.state
    if (this.#seen === undefined || log.length - computed < 2 || task.state.hasTransaction) return
    const { salt, saltFrom, extra } = readPrompt(names)
    const { length } = log
    // A task that was preempted has seen its own prompt before.
    const seen = this.#placed.get(task)?.seen ?? this.#seen.add(log.view(), { salt, saltFrom, extra })
    const positions = checkpointsOf({
      blockSize: this.#blockSize,
      length,
      found: computed,
      reached: Math.min(reached, computed),
      seen,
      saltFrom: salt.length === 0 ? undefined : saltFrom,
      named: log.named,
      slots: this.#slots,
    })
    this.#placed.set(task, { positions, seen })
  }

  /** Adds a position of whole blocks, behind which another prompt leaves this one. */
  add(task: CutTask, position: number): void {
    const placed = this.#placed.get(task)
    if (this.#seen === undefined || placed?.positions.includes(position) === true) return
    const positions = [...(placed?.positions ?? []), position].sort((one, other) => one - other)
    this.#placed.set(task, { positions, seen: placed?.seen ?? 0 })
  }

  /** The number of pending tokens up to the next of these positions; `undefined` if none follows. */
  next(task: CutTask): number | undefined {
    if (this.#seen === undefined) return undefined
    const { computed, log } = task.state
    const next = this.#placed.get(task)?.positions.find(position => position > computed)
    return next === undefined || next >= log.length ? undefined : next - computed
  }
}
