// The blocks that clients of a random schedule keep: whether something that was refused had room beside them.
import type { OnnxModel } from '../../../onnx.js'

/** The blocks that cannot be taken from clients: they rest, or have a transaction open. And the most of them while something was asked for. */
export class Pins {
  readonly blockSize: number
  readonly capacity: number
  readonly #of = new Map<object, { readonly blocks: number; readonly isDrafting: boolean }>()
  readonly #asked = new Set<{ most: number; readonly isDraft: boolean }>()

  /** `capacity` is the number of blocks for tokens, if there are others beside them. */
  constructor(model: OnnxModel, capacity: number = model.cache.totalCount) {
    this.blockSize = model.cache.blockSize
    this.capacity = capacity
  }

  /** The most blocks that so many tokens take: one is a copy of a shared one. */
  blocks(tokens: number): number {
    return tokens === 0 ? 0 : 1 + Math.ceil(tokens / this.blockSize)
  }

  set(client: object, tokens: number, isDrafting = false): void {
    this.#of.set(client, { blocks: this.blocks(tokens), isDrafting })
    for (const asked of this.#asked) asked.most = Math.max(asked.most, this.#sum(asked.isDraft))
  }

  /** Makes a call, and says what others pin at most until it ends. Only what is asked for in a transaction may be refused for one that goes on. */
  async during(isDraft: boolean, call: () => Promise<void>): Promise<number> {
    const asked = { most: this.#sum(isDraft), isDraft }
    this.#asked.add(asked)
    try {
      await call()
    } finally {
      this.#asked.delete(asked)
    }
    return asked.most
  }

  /** The blocks that each client keeps, for the message of a failure. */
  toString(): string {
    return [...this.#of.values()].map(({ blocks, isDrafting }) => `${blocks}${isDrafting ? ' drafting' : ''}`).join()
  }

  #sum(isDraft: boolean): number {
    return [...this.#of.values()].reduce(
      (sum, { blocks, isDrafting }) => sum + (isDrafting && !isDraft ? 0 : blocks),
      0,
    )
  }
}
