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

interface Kept extends Pinned {
  readonly isDrafting: boolean
}

/** A call of a client, and the most that other clients kept since it began. */
interface Asked {
  readonly client: object
  readonly isDraft: boolean
  most: Pinned
}

/** The blocks that cannot be taken from clients: they rest, or have a transaction open. And the most of them while something was asked for. */
export class Pins {
  readonly blockSize: number
  /** The blocks of the group that keeps tokens, or as many as are never needed. */
  readonly capacity: number
  /** The slots of states, or as many as are never needed. */
  readonly slots: number
  readonly #of = new Map<object, Kept>()
  readonly #asked = new Set<Asked>()

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
    for (const asked of this.#asked) asked.most = mostOf(asked.most, this.#sum(asked))
  }

  /** Makes a call of a client, and says what others pin at most until it ends. Only what is asked for in a transaction may be refused for one that goes on. */
  async during(client: object, isDraft: boolean, call: () => Promise<void>): Promise<Pinned> {
    const asked = { client, isDraft, most: this.#sum({ client, isDraft }) }
    this.#asked.add(asked)
    try {
      await call()
    } finally {
      this.#asked.delete(asked)
    }
    return asked.most
  }

  /** True if so many tokens have no room beside what others pinned. */
  lacks(tokens: number, isDraft: boolean, pinned: Pinned): boolean {
    const slots = isDraft ? 1 + SLOTS : SLOTS
    return this.blocks(tokens) > this.capacity - pinned.blocks || slots > this.slots - pinned.slots
  }

  /** The blocks that each client keeps, for the message of a failure. */
  toString(): string {
    const each = [...this.#of.values()].map(
      ({ blocks, slots, isDrafting }) => `${blocks} and ${slots}${isDrafting ? ' drafting' : ''}`,
    )
    return `${each.join()} of ${this.capacity} blocks and ${this.slots} slots`
  }

  /** The blocks and slots of all other clients. */
  #sum({ client, isDraft }: Omit<Asked, 'most'>): Pinned {
    let { blocks, slots } = NONE
    for (const [other, kept] of this.#of) {
      if (other === client || (kept.isDrafting && !isDraft)) continue
      blocks += kept.blocks
      slots += kept.slots
    }
    return { blocks, slots }
  }
}

const mostOf = (one: Pinned, other: Pinned): Pinned => ({
  blocks: Math.max(one.blocks, other.blocks),
  slots: Math.max(one.slots, other.slots),
})
