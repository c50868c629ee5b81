// The ends of steps in the prompts of a model whose layers keep states: positions of checkpoints (checkpoints.ts decides them) for the prompt of each sequence. For
// other models there are none, and nothing is computed.
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import { readPrompt } from '../sequences/prompt.js'
import { checkpointsOf, intervalOf } from './checkpoints.js'
import { SeenPrompts } from './seen-prompts.js'
import type { SequenceState } from './sequence-state.js'

/** @internal The properties of a sequence that its checkpoints depend on. */
export type CutSequence = Pick<SequenceState, 'computed' | 'log' | 'names'>

/** @internal The positions at which steps of prompts have to end. */
export class Cuts {
  readonly #blockSize: number
  readonly #seen: SeenPrompts | undefined
  /** The number of states that the cache has room for. */
  readonly #slots: number
  /** The positions in the prompt of each sequence, ascending. */
  readonly #positions = new WeakMap<CutSequence, readonly number[]>()

  constructor(cache: Pick<PagedKvCache, 'blockSize' | 'groups' | 'stats'>) {
    const kinds: readonly string[] = cache.groups.map(({ kind }) => kind)
    const { pools } = cache.stats()
    this.#blockSize = cache.blockSize
    this.#slots = Math.min(
      ...pools.map(({ totalBlocks }, group) => (kinds[group] === 'state' ? totalBlocks : Infinity)),
    )
    this.#seen = kinds.includes('state') ? new SeenPrompts(cache.blockSize) : undefined
  }

  /** Decides the positions in a prompt that is computed from its first pending token on. O(tokens of the prompt). */
  place(state: CutSequence): void {
    const { computed, log, names } = state
    if (this.#seen === undefined || log.length - computed < 2) return
    const { salt, saltFrom, extra } = readPrompt(names)
    const { length } = log
    const positions = checkpointsOf({
      blockSize: this.#blockSize,
      length,
      found: computed,
      seen: this.#seen.add(log.view(), { salt, saltFrom, extra }),
      saltFrom: salt.length === 0 ? undefined : saltFrom,
      named: log.named,
      interval: intervalOf(length, this.#slots, this.#blockSize),
    })
    this.#positions.set(state, positions)
  }

  /** The number of pending tokens up to the next of these positions; `undefined` if none follows. */
  next(state: CutSequence): number | undefined {
    if (this.#seen === undefined) return undefined
    const { computed, log } = state
    const next = this.#positions.get(state)?.find(position => position > computed)
    return next === undefined || next >= log.length ? undefined : next - computed
  }
}
