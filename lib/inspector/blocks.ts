// The state of all blocks of a group, and the tree of its sequences by common prefix.
import type { SharedCache } from '../sequences/shared-cache.js'
import { BLOCK, type Branch, OWNED } from './messages.js'

/** The number of different colours of sequences; they repeat behind it. */
const COLOURS = 60_000

/** @internal The state of all blocks of one group of layers, and the block tables of its sequences. */
export interface BlockMap {
  readonly codes: Uint16Array
  readonly tables: ReadonlyMap<number, Int32Array>
}

/** @internal Reads the state of a group: `O(blocks)`, of the pool and of all sequences. */
export function blockMap({ native }: SharedCache, group: number): BlockMap {
  const states = native.blockStates(group)
  const codes = Uint16Array.from(states)
  const tables = new Map(native.sequenceIds().map(id => [id, native.blocksOf(id, group)]))
  for (const [id, blocks] of tables) {
    for (const block of blocks) {
      if (block >= 0) codes[block] = codes[block] === BLOCK.held ? OWNED + (id % COLOURS) : BLOCK.shared
    }
  }
  return { codes, tables }
}

/** @internal The tree of sequences by common prefix. Blocks that left a window count as equal at the same place. */
export function prefixTree(tables: BlockMap['tables']): readonly Branch[] {
  return branches([...tables], 0)
}

/** @internal The sequences without a tree, for a cache without keys and values: their states have no common blocks. */
export function listed(tables: BlockMap['tables']): readonly Branch[] {
  return [...tables.keys()].map(id => ({ from: 0, to: 0, sequences: [id], children: [] }))
}

function branches(of: readonly (readonly [id: number, blocks: Int32Array])[], from: number): Branch[] {
  const byBlock = new Map<number, (readonly [number, Int32Array])[]>()
  for (const entry of of) {
    const block = entry[1][from] as number
    const same = byBlock.get(block)
    if (same === undefined) byBlock.set(block, [entry])
    else same.push(entry)
  }
  return [...byBlock.values()].map(group => {
    const to = group.length === 1 ? (group[0]?.[1].length as number) : common(group, from)
    const ended = group.filter(([, blocks]) => blocks.length <= to)
    const rest = group.filter(([, blocks]) => blocks.length > to)
    return { from, to, sequences: ended.map(([id]) => id), children: rest.length === 0 ? [] : branches(rest, to) }
  })
}

/** The number of blocks that all of them have in common. */
function common(group: readonly (readonly [number, Int32Array])[], from: number): number {
  const first = group[0]?.[1] as Int32Array
  const most = Math.min(...group.map(([, blocks]) => blocks.length))
  let to = from
  while (to < most && group.every(([, blocks]) => blocks[to] === first[to])) to += 1
  return Math.max(to, Math.min(from + 1, most))
}
