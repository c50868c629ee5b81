// The blocks that clients of a random schedule keep: whether something that was refused had room beside them.
import type { OnnxModel } from '../../../onnx.js'

/** The slots of states that a call needs at most: that from before its step, and that after it; one more in a transaction, for the state from before that. */
const SLOTS = 2

/** Blocks of tokens, and slots of states. */
interface Pinned {
  readonly blocks: number
  readonly slots: number
}

const NONE: Pinned = { blocks: 0, slots: 0 }

/** The blocks that cannot be taken from clients: they rest, or have a transaction open. And the most of them while something was asked for. */
export class Pins {
  readonly blockSize: number
  /** The blocks of the group that keeps tokens, or as many as are never needed. */
  readonly capacity: number
  /** The slots of states, or as many as are never needed. */
  readonly slots: number
  readonly #of = new Map<object, Pinned & { readonly isDrafting: boolean }>()
  readonly #asked = new Set<{ most: Pinned; readonly isDraft: boolean }>()

  constructor(model: OnnxModel) {
    const { groups, blockSize } = model.cache
    const { pools } = model.cache.stats()
    const of = (isState: boolean): number =>
      Math.min(
        ...pools.map(({ totalBlocks }, at) => ((groups[at]?.kind === 'state') === isState ? totalBlocks : Infinity)),
      )
    this.blockSize = blockSize
    this.capacity = of(false)
    this.slots = of(true)
  }

  /** The most blocks that so many tokens take: one is a copy of a shared one. */
  blocks(tokens: number): number {
    return tokens === 0 ? 0 : 1 + Math.ceil(tokens / this.blockSize)
  }

  set(client: object, tokens: number, isDrafting = false): void {
    const slots = tokens === 0 ? 0 : isDrafting ? 1 + SLOTS : 1
    this.#of.set(client, { blocks: this.blocks(tokens), slots, isDrafting })
    for (const asked of this.#asked) asked.most = mostOf(asked.most, this.#sum(asked.isDraft))
  }

  /** Makes a call, and says what others pin at most until it ends. Only what is asked for in a transaction may be refused for one that goes on. */
  async during(isDraft: boolean, call: () => Promise<void>): Promise<Pinned> {
    const asked = { most: this.#sum(isDraft), isDraft }
    this.#asked.add(asked)
    try {
      await call()
    } finally {
      this.#asked.delete(asked)
    }
    return asked.most
  }

  /** True if so many tokens have no room beside what was pinned, their own blocks included in a transaction. */
  lacks(tokens: number, isDraft: boolean, pinned: Pinned): boolean {
    const [blocks, slots] = [this.blocks(tokens), isDraft ? 1 + SLOTS : SLOTS]
    const own = isDraft ? { blocks, slots } : NONE
    return blocks > this.capacity - (pinned.blocks - own.blocks) || slots > this.slots - (pinned.slots - own.slots)
  }

  /** The blocks that each client keeps, for the message of a failure. */
  toString(): string {
    const each = [...this.#of.values()].map(
      ({ blocks, slots, isDrafting }) => `${blocks} and ${slots}${isDrafting ? ' drafting' : ''}`,
    )
    return `${each.join()} of ${this.capacity} blocks and ${this.slots} slots`
  }

  #sum(isDraft: boolean): Pinned {
    const counted = [...this.#of.values()].filter(({ isDrafting }) => !isDrafting || isDraft)
    return counted.reduce<Pinned>(
      (sum, { blocks, slots }) => ({ blocks: sum.blocks + blocks, slots: sum.slots + slots }),
      NONE,
    )
  }
}

const mostOf = (one: Pinned, other: Pinned): Pinned => ({
  blocks: Math.max(one.blocks, other.blocks),
  slots: Math.max(one.slots, other.slots),
})
