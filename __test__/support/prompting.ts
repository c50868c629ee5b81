import { PagedKvCache, type StoreEvent, type StoreTier } from '../../index.js'
import { DIM, LAYERS, rowsOf } from './racing/rows.js'

const TENANTS = 2
/** A deadline that no match of a store that answers reaches. */
const LATE_MS = 60_000

/** A cache over a store, in which prompts of several tenants are computed. Each row that a match brings is checked. */
export class Prompting {
  readonly cache: PagedKvCache
  readonly events: StoreEvent[] = []
  /** Tokens that matches found. */
  found = 0

  constructor(store: Omit<StoreTier, 'onChange'>, deadline: number = LATE_MS) {
    const sizes = { capacity: 40, blockSize: 4, numLayers: LAYERS, numKvHeads: 1, headDim: DIM }
    this.cache = new PagedKvCache({
      ...sizes,
      namespace: 'prompting',
      prefixKey: new Uint8Array(32).fill(9),
      tiers: { store: { ...store, onChange: event => this.events.push(event) }, deadline },
    })
  }

  /** The tokens of a prompt, by its number. Prompts of neighbouring numbers begin alike. */
  static prompt(number: number): number[] {
    return Array.from({ length: 21 }, (_, at) => 100 * (at < 8 ? number >> 1 : number) + at)
  }

  /** Looks for a prompt in the store, checks what is found, and computes the rest. Returns the number of tokens that were found. */
  async ask(number: number): Promise<number> {
    const [tenant, tokens] = [number % TENANTS, Prompting.prompt(number)]
    using match = await this.cache.match(tokens, { salt: `tenant ${tenant}`, tiers: 'all' })
    using sequence = this.cache.openSequence({ prefix: match })
    const { length } = sequence
    sequence.append({
      tokens: tokens.slice(length),
      k: rowsOf(tenant, tokens, length, 0),
      v: rowsOf(tenant, tokens, length, 1),
    })
    const size = tokens.length * DIM
    for (let layer = 0; layer < LAYERS; layer++) {
      const kv = this.cache.gather(sequence, layer)
      for (const [part, shown] of [kv.k, kv.v].entries()) {
        const wanted = rowsOf(tenant, tokens, 0, part).data.subarray(layer * size, (layer + 1) * size)
        const rows = shown.toFloat32Array()
        shown.dispose()
        if (rows.length !== size || rows.some((value, at) => value !== wanted[at]))
          throw new Error(
            `wrong rows in part ${part} of layer ${layer} of prompt ${number}, of which ${length} tokens were found`,
          )
      }
    }
    this.cache.checkInvariants()
    this.found += length
    return length
  }
}
