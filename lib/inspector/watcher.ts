// Samples a cache for the inspector and sends the changes to open pages as server-sent events.
import type { ServerResponse } from 'node:http'

import { isKvTideError } from '../errors/errors.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { blockMap, type BlockMap, listed, prefixTree } from './blocks.js'
import type { Branch, GroupShape, Message, Sample } from './messages.js'

/** An open page. */
interface Follower {
  readonly response: ServerResponse
  readonly group: number
  codes: Uint16Array | undefined
  tree: string
  ends: string
}

const [SAMPLE_MS, FRAME_MS, HISTORY] = [1000, 25, 600]
/** The number of frames from one tree to the next; a tree costs more to draw. */
const TREE_FRAMES = 8

/**
 * @internal Reads a cache's statistics once a second and, while a page is open, its blocks forty times a second. A page that is slower than that gets
 * fewer frames.
 */
export class Watcher {
  readonly #cache: PagedKvCache
  readonly #shared: SharedCache
  readonly #name: string
  readonly #history: Sample[] = []
  readonly #followers = new Set<Follower>()
  #sampling: NodeJS.Timeout | undefined
  #framing: NodeJS.Timeout | undefined
  #frames = 0

  constructor(cache: PagedKvCache, shared: SharedCache, name: string) {
    this.#cache = cache
    this.#shared = shared
    this.#name = name
  }

  start(): void {
    this.#sample()
    this.#sampling = setInterval(() => this.#sample(), SAMPLE_MS).unref()
  }

  stop(): void {
    clearInterval(this.#sampling)
    clearInterval(this.#framing)
    for (const { response } of this.#followers) response.end()
    this.#followers.clear()
  }

  /** Sends events to a page until it disconnects. */
  follow(response: ServerResponse, group: number, headers: Readonly<Record<string, string>>): void {
    response.writeHead(200, { ...headers, 'content-type': 'text/event-stream' })
    const { groups, blockSize } = this.#cache
    const place = groups[group] === undefined ? 0 : group
    const follower: Follower = { response, group: place, codes: undefined, tree: '', ends: '' }
    const pools = this.#asked(() => this.#cache.stats().pools) ?? []
    const shapes = groups.map(({ kind, layers, window, bytes }, at): GroupShape => ({
      kind,
      layers: layers.length,
      ...(window !== undefined && { window }),
      blocks: pools[at]?.totalBlocks ?? 0,
      ...(bytes !== undefined && { bytes }),
    }))
    tell(follower, { kind: 'hello', name: this.#name, blockSize, groups: shapes, history: this.#history })
    this.#followers.add(follower)
    response.once('close', () => {
      this.#followers.delete(follower)
      if (this.#followers.size === 0) clearInterval(this.#framing)
    })
    if (this.#followers.size === 1) this.#framing = setInterval(() => this.#frame(), FRAME_MS).unref()
    this.#sample()
    this.#frame()
  }

  #sample(): void {
    const stats = this.#asked(() => this.#cache.stats())
    if (stats === undefined) return
    const { usedBytes, activeBlocks, cachedBlocks, freeBlocks, evictions, limitBytes } = stats
    const { promptTokens, hitTokens, lostTokens } = stats
    const sample = {
      time: Date.now(),
      usedBytes,
      activeBlocks,
      cachedBlocks,
      freeBlocks,
      evictions,
      promptTokens,
      hitTokens,
      lostTokens,
    }
    this.#history.push(sample)
    if (this.#history.length > HISTORY) this.#history.shift()
    for (const follower of this.#followers)
      tell(follower, { kind: 'sample', sample, limitBytes: Number.isFinite(limitBytes) ? limitBytes : null })
  }

  #frame(): void {
    this.#frames += 1
    for (const group of new Set([...this.#followers].map(follower => follower.group))) {
      const map = this.#asked(() => blockMap(this.#shared, group))
      if (map === undefined) return
      for (const follower of this.#followers) {
        // A page that has not read the previous frame skips this one.
        if (follower.group !== group || follower.response.writableNeedDrain) continue
        tellBlocks(follower, map.codes)
        if (follower.tree === '' || this.#frames % TREE_FRAMES === 0) {
          const tree = this.#asked(() => this.#tree(group, map.tables))
          if (tree === undefined) return
          if (tree !== follower.tree) follower.response.write(`data: ${tree}\n\n`)
          follower.tree = tree
          this.#tellEnds(follower)
        }
      }
    }
  }

  /** The message with the tree of sequences. Sequences share blocks, never states: for a group of states, it is that of the first group. */
  #tree(group: number, tables: BlockMap['tables']): string {
    const { groups } = this.#cache
    const isState = groups[group]?.kind === 'state'
    let tree: readonly Branch[]
    if (!isState) tree = prefixTree(tables)
    else if (groups[0]?.kind === 'state') tree = listed(tables)
    else tree = prefixTree(blockMap(this.#shared, 0).tables)
    const ids = [...tables.keys()]
    const lengths = Object.fromEntries(ids.map(id => [id, this.#cache.sequenceLength(id)]))
    const hasStates = groups.at(-1)?.kind === 'state'
    const of = (id: number): readonly [number, number[]] => [id, [...this.#shared.native.checkpointsOf(id)]]
    const checkpoints = hasStates ? { checkpoints: Object.fromEntries(ids.map(of)) } : {}
    return JSON.stringify({ kind: 'tree', tree, lengths, ...checkpoints } satisfies Message)
  }

  /** Sends the positions of checkpoints to a page that shows a group of states. */
  #tellEnds(follower: Follower): void {
    if (this.#cache.groups[follower.group]?.kind !== 'state') return
    const ends = this.#asked(() => base64(this.#shared.native.stateEnds(follower.group)))
    if (ends === undefined || ends === follower.ends) return
    follower.ends = ends
    tell(follower, { kind: 'ends', ends })
  }

  /** The answer of the cache; `undefined` while it is busy. If the cache was disposed of, all pages get the message `ended`. */
  #asked<T>(ask: () => T): T | undefined {
    try {
      return ask()
    } catch (error) {
      if (!isKvTideError(error)) throw error
      if (error.code !== 'DISPOSED') return undefined
      for (const follower of this.#followers) tell(follower, { kind: 'ended' })
      this.stop()
      return undefined
    }
  }
}

function tell({ response }: Follower, message: Message): void {
  response.write(`data: ${JSON.stringify(message)}\n\n`)
}

function tellBlocks(follower: Follower, codes: Uint16Array): void {
  const before = follower.codes
  follower.codes = codes
  if (before === undefined) return tell(follower, { kind: 'blocks', codes: base64(codes) })
  const pairs: number[] = []
  for (let block = 0; block < codes.length; block++)
    if (codes[block] !== before[block]) pairs.push(block, codes[block] as number)
  if (pairs.length === 0) return
  if (pairs.length > codes.length / 2) tell(follower, { kind: 'blocks', codes: base64(codes) })
  else tell(follower, { kind: 'changes', pairs: base64(Uint32Array.from(pairs)) })
}

function base64(array: Uint16Array | Uint32Array): string {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('base64')
}
