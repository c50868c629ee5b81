// Computes prompts of a small world over tiers that it shares, and checks every row of every match. As a program it goes on until it is told to
// stop, and tells its parent how far it is.
import { PagedKvCache, RedisStore, type TierOptions } from '../../index.js'

const BLOCK = 4
const LAYERS = 2
const HEADS = 2
const DIM = 32

/** The task of a process. */
export interface Work {
  readonly folder: string
  readonly url?: string
  readonly secret?: string
  readonly seed: number
}

/** Its progress. */
export interface Progress {
  readonly prompts: number
  /** Tokens that matches found, and that tiers had of them. */
  readonly found: number
  readonly brought: number
}

function mix(number: number): number {
  const once = Math.imul(number ^ (number >>> 15), 0x2c1b3c6d)
  const twice = Math.imul(once ^ (once >>> 12), 0x297a2d39)
  return (twice ^ (twice >>> 15)) >>> 0
}

/** K (part 0) or V (part 1) of tokens from a position on, `[layers, heads, n, dim]`: whole numbers that follow from all tokens so far. */
function rowsOf(tokens: readonly number[], from: number, part: number): { data: Float32Array; shape: number[] } {
  let before = 1
  const states = tokens.map(token => (before = mix(before ^ Math.imul(token + 1, 0x9e3779b1))))
  const rest = states.slice(from)
  const data = new Float32Array(LAYERS * HEADS * rest.length * DIM)
  let at = 0
  for (let row = 0; row < LAYERS * HEADS; row++) {
    for (const state of rest)
      for (let place = 0; place < DIM; place++) data[at++] = mix(state ^ (row * 64 + place * 2 + part)) >>> 10
  }
  return { data, shape: [LAYERS, HEADS, rest.length, DIM] }
}

/** A cache over shared tiers, and prompts that are computed in it. */
export class Computing {
  readonly cache: PagedKvCache
  prompts = 0
  found = 0
  readonly #store: RedisStore | undefined
  #state: number

  constructor({ folder, url, secret, seed }: Work) {
    this.#state = seed
    this.#store = url === undefined ? undefined : new RedisStore({ url })
    const sealed = secret === undefined ? {} : { secret: Buffer.from(secret, 'hex') }
    const tiers: TierOptions = {
      disk: { path: folder, limitBytes: 2 ** 20 },
      ...(this.#store && { store: { store: this.#store, compress: true, ...sealed } }),
    }
    const sizes = { capacity: 40, blockSize: BLOCK, numLayers: LAYERS, numKvHeads: HEADS, headDim: DIM }
    this.cache = new PagedKvCache({ ...sizes, namespace: 'processes', prefixKey: new Uint8Array(32).fill(9), tiers })
  }

  #below(limit: number): number {
    this.#state = (Math.imul(this.#state, 1664525) + 1013904223) >>> 0
    return Math.floor((this.#state / 2 ** 32) * limit)
  }

  /** A prompt that shares its beginning with others. */
  #prompt(): number[] {
    const tokens: number[] = []
    let branch = 0
    for (let block = 0, blocks = 2 + this.#below(10); block < blocks; block++) {
      if (block % 3 === 0) branch = this.#below(6)
      for (let token = 0; token < BLOCK; token++) tokens.push(branch * 1000 + block * 10 + token)
    }
    return [...tokens, 1 + this.#below(5)]
  }

  /** Looks for a prompt, checks what was found, and computes the rest. */
  async step(): Promise<void> {
    const tokens = this.#prompt()
    const match = await this.cache.match(tokens, { tiers: 'all', deadline: this.#below(2) === 0 ? 100 : 5000 })
    const sequence = this.cache.openSequence({ prefix: match })
    const { length } = sequence
    this.#check(tokens.slice(0, length), sequence.id)
    sequence.append({ tokens: tokens.slice(length), k: rowsOf(tokens, length, 0), v: rowsOf(tokens, length, 1) })
    sequence.drop()
    this.prompts += 1
    this.found += length
    if (this.prompts % 50 === 0) this.cache.checkInvariants()
  }

  #check(tokens: readonly number[], sequence: number): void {
    if (tokens.length === 0) return
    const [k, v] = [rowsOf(tokens, 0, 0).data, rowsOf(tokens, 0, 1).data]
    const size = k.length / LAYERS
    for (let layer = 0; layer < LAYERS; layer++) {
      const kv = this.cache.gather(sequence, layer)
      for (const [part, shown, wanted] of [
        ['k', kv.k, k],
        ['v', kv.v, v],
      ] as const) {
        const row = wanted.subarray(layer * size, (layer + 1) * size)
        if (
          Buffer.compare(
            Buffer.from(Float32Array.from(shown.toFloat32Array()).buffer),
            Buffer.from(row.slice().buffer),
          ) !== 0
        ) {
          throw new Error(`wrong rows: ${part} of layer ${layer} for ${tokens.join()}`)
        }
      }
    }
  }

  get progress(): Progress {
    const { disk, store } = this.cache.stats().tiers ?? {}
    return { prompts: this.prompts, found: this.found, brought: (disk?.found ?? 0) + (store?.found ?? 0) }
  }

  dispose(): void {
    this.cache.dispose()
    this.#store?.dispose()
  }
}

async function main(work: Work): Promise<void> {
  const stop = new AbortController()
  process.once('message', () => stop.abort())
  const computing = new Computing(work)
  while (!stop.signal.aborted) {
    for (let turn = 0; turn < 5; turn++) await computing.step()
    process.send?.(computing.progress)
    await new Promise(resolve => setImmediate(resolve))
  }
  computing.cache.checkInvariants()
  computing.dispose()
  process.disconnect()
}

const [, , given] = process.argv
if (process.argv[1] === import.meta.filename && given !== undefined) await main(JSON.parse(given) as Work)
