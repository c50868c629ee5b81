// Makes objects of every kind again and again, disposed of or left to the garbage collection, and measures the memory of the process. Runs as a program.
import { setImmediate } from 'node:timers/promises'

import {
  attendAsync,
  BlockPool,
  BlockTable,
  isKvTideError,
  KvCache,
  memoryStats,
  PagedKvCache,
  PrefixNamer,
  PrefixRouter,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
} from '../../index.js'
import { layered, LAYERED } from './layered.js'
import { Shelf } from './shelf.js'
import { span, tokens } from './tokens.js'

const kvOptions = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 64, headDim: 16 } as const
const rows = { data: new Float32Array(32), shape: [1, 1, 2, 16] }
const small = { capacity: 8, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1 } as const
const [K, V] = layered(span(0, 9))

/** Collects what one cycle makes, to be disposed of in reverse order, or never. A sequence exists until it is dropped, so it always is. */
type Keep = <T extends { dispose(): unknown }>(object: T) => T

/** A kind of cycle. An asynchronous one is awaited. */
export type Cycle = (keep: Keep) => unknown

const shared = new PagedKvCache({ ...small, capacity: 8192, events: 16 })
const signal = new AbortController().signal
const shelf = new Shelf()

/** Counts a call that must be refused. */
function refused(call: () => unknown): void {
  try {
    call()
  } catch (error) {
    if (isKvTideError(error)) return
    throw error
  }
  throw new Error('it was not refused')
}

export const CYCLES: Readonly<Record<string, Cycle>> = {
  'growing caches and their views': keep => {
    const cache = keep(new KvCache(kvOptions))
    const kv = cache.update(rows, rows)
    keep(kv.k)
    keep(kv.v)
    keep(cache.snapshot())
    keep(kv.k.narrow(2, 0, 1)).toArray()
  },
  'windows and their snapshots': keep => {
    const pair = keep(new RotatingKvCache({ maxSeqLen: 2 }))
    const one = keep(new RotatingCache({ dim: 2, maxSeqLen: 2 }))
    for (let step = 0; step < 3; step++) {
      const kv = pair.append(rows, rows)
      keep(kv.k)
      keep(kv.v)
      keep(one.append(rows))
    }
    keep(one.snapshot())
  },
  'tentative tokens and drafts': keep => {
    const cache = keep(new RollbackCache())
    cache.append(rows, rows)
    keep(cache.snapshot())
    cache.commit(1)
    const draft = keep(cache.begin())
    draft.append(rows, rows)
  },
  'paged caches': keep => {
    const cache = keep(new PagedKvCache(small))
    const sequence = keep(cache.openSequence())
    sequence.append({ k: K, v: V, tokens: span(0, 9) })
    keep(cache.match(span(0, 9)))
  },
  'caches with tiers': keep => {
    const cache = keep(
      new PagedKvCache({ ...LAYERED, capacity: 8, tiers: { memory: { limitBytes: 1e4 }, store: { store: shelf } } }),
    )
    const sequence = keep(cache.openSequence())
    sequence.append({ k: K, v: V, tokens: span(0, 9) })
  },
  'sequences, forks, snapshots and matches of one cache': keep => {
    using sequence = shared.openSequence({ prefix: shared.match(span(0, 9)) })
    const from = sequence.length
    const [k, v] = layered(span(from, 9))
    sequence.append({ k, v, tokens: span(from, 9) })
    using fork = sequence.fork()
    fork.truncate(3)
    keep(sequence.snapshot())
    keep(shared.match(span(0, 9)))
  },
  'drafts and steps that are abandoned': keep => {
    using sequence = shared.openSequence()
    sequence.append({ k: K, v: V, tokens: span(0, 9) })
    keep(sequence.begin()).rollback()
    const step = keep(shared.beginStep({ sequences: [sequence], offsets: [0, 1] }))
    const row = { data: new Float32Array(2), shape: [2, 1, 1] }
    step.write(0, row, row)
  },
  'attention in the background, with one signal': async keep => {
    const kv = { k: keep(tokens(0, 2)), v: keep(tokens(0, 2)) }
    const { out } = await attendAsync(keep(tokens(0, 1)), kv, { signal })
    keep(out)
  },
  'reads in the background': async keep => {
    await keep(Tensor.from(new Float32Array(64), [64])).toArrayAsync({ signal })
  },
  'saves and loads': async () => {
    using sequence = shared.openSequence()
    sequence.append({ k: K, v: V, tokens: span(0, 9) })
    using loaded = await shared.loadSequence(await sequence.saveBytes({ signal }))
    if (loaded.length !== 9) throw new Error(`${loaded.length} tokens were loaded`)
  },
  'readers of events': async keep => {
    const events = keep(shared.events())
    const next = events.next()
    events.dispose()
    await next
  },
  'refused calls': keep => {
    const cache = keep(new KvCache(kvOptions))
    refused(() => cache.truncate(9))
    refused(() => cache.update(rows, { data: new Float32Array(3), shape: [1, 1, 3, 1] }))
    refused(() => new KvCache({ ...kvOptions, maxSeqLen: 0 }))
    refused(() => shared.sequence(2 ** 40))
  },
  'pools, tables, namers and routers': keep => {
    keep(new BlockPool({ capacity: 8 })).allocate()
    keep(new BlockTable({ numLayers: 2, blockSize: 4 })).appendBlock(0, 1)
    keep(new PrefixNamer(LAYERED)).keys(span(0, 9))
    keep(new PrefixRouter()).addWorker('one')
  },
}

/** The memory of the process once garbage was collected. */
async function settled(): Promise<number> {
  let least = Infinity
  for (let round = 0; round < 4; round++) {
    globalThis.gc?.()
    await setImmediate()
    // Any call that allocates reports native memory.
    Tensor.from(new Uint8Array(1), [1]).dispose()
    least = Math.min(least, process.memoryUsage.rss())
  }
  return least
}

async function cycles(cycle: Cycle, count: number, isDisposing: boolean): Promise<void> {
  for (let round = 0; round < count; round++) {
    const kept: { dispose(): unknown }[] = []
    const answer = cycle(object => {
      if (isDisposing) kept.push(object)
      return object
    })
    if (answer instanceof Promise) await answer
    for (const object of kept.toReversed()) object.dispose()
    if (round % (isDisposing ? 1000 : 500) !== 0) continue
    shelf.values.clear()
    shelf.calls.length = 0
    if (!isDisposing) globalThis.gc?.()
    await setImmediate()
  }
}

/** The bytes that the process has grown by in `count` cycles. Growth that does not go on with as many more cycles is memory that is used again. */
async function growth(cycle: Cycle, count: number, isDisposing: boolean): Promise<{ rss: number; native: number }> {
  const [rss, native] = [await settled(), memoryStats().usedBytes]
  await cycles(cycle, count, isDisposing)
  return { rss: (await settled()) - rss, native: memoryStats().usedBytes - native }
}

async function main(names: readonly string[], count: number, isDisposing: boolean, most: number): Promise<void> {
  const grown: Record<string, unknown> = {}
  for (const name of names) {
    const cycle = CYCLES[name] as Cycle
    await cycles(cycle, Math.min(count, 1000), isDisposing)
    const first = await growth(cycle, count, isDisposing)
    grown[name] = first.rss < most && first.native < most ? first : await growth(cycle, count, isDisposing)
  }
  console.log(JSON.stringify(grown))
}

const [, script, way, count, most, ...names] = process.argv
if (script === import.meta.filename) await main(names, Number(count), way === 'dispose', Number(most))
