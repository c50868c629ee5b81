// Policies of eviction: which block makes room, what may be answered, when it is asked.
import test from 'ava'

import { type EvictionPolicy, memoryStats, PagedKvCache, type UniformCacheOptions } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

type Released = Parameters<EvictionPolicy>[0]

const SIZES = { numKvHeads: 2, headDim: 1 }
const BLOCK = 4

/** The part of both caches that a trace of prompts needs. */
interface Cache extends Disposable {
  /** Computes and retains what is not there yet of a prompt, in a sequence that ends at once; tokens without names are never found. */
  prompt(tokens: readonly number[], options?: { named?: boolean; priority?: number }): void
  /** The number of tokens of a prompt that are cached. Asking changes no order. */
  found(tokens: readonly number[]): number
  /** Blocks that are not held and that prompts find. */
  cached(): number
}

function paged(options: Partial<UniformCacheOptions>, capacity = 6): Cache {
  const cache = new PagedKvCache({ capacity, blockSize: BLOCK, numLayers: 2, ...SIZES, ...options })
  return {
    prompt(tokens, { named = true, priority } = {}) {
      using prefix = cache.match(named ? tokens : [])
      const from = prefix.length
      const rest = tokens.slice(from)
      using seq = cache.openSequence({ prefix })
      const [k, v] = layered(rest)
      seq.append(named ? { tokens: rest, k, v } : { k, v })
      if (priority !== undefined) seq.retain({ from, priority })
    },
    found: tokens => cache.explain([...tokens, 0]).matched,
    cached: () => {
      cache.checkInvariants()
      return cache.stats().cachedBlocks
    },
    [Symbol.dispose]: () => cache.dispose(),
  }
}

const LAYERS = [{ kind: 'full', ...SIZES }] as const

function model(options: { eviction?: EvictionPolicy }, capacity = 6): Cache {
  const cache = new PagedKvCache({ model: { layers: LAYERS }, blockSize: BLOCK, capacity, ...options })
  return {
    prompt(tokens, { named = true, priority } = {}) {
      using prefix = cache.match(named ? tokens : [])
      const from = prefix.length
      const rest = tokens.slice(from)
      using seq = cache.openSequence({ prefix })
      const rows = { data: new Float32Array(2 * rest.length), shape: [2, rest.length, 1] }
      const layers = [{ k: rows, v: rows }]
      seq.append(named ? { tokens: rest, layers } : { layers })
      if (priority !== undefined) seq.retain({ from, priority })
    },
    found: tokens => cache.explain([...tokens, 0]).matched,
    cached: () => {
      cache.checkInvariants()
      return cache.stats().pools[0]?.cachedBlocks ?? NaN
    },
    [Symbol.dispose]: () => cache.dispose(),
  }
}

const headsLonger: EvictionPolicy = ({ priority, depth }) => priority + (depth < 2 ? 20 : 0)
const contrary: EvictionPolicy = ({ priority }) => 100 - priority

const [one, other] = [span(0, 12), span(100, 112)]

for (const [kind, make] of [
  ['alike', paged],
  ['a model', model],
] as const) {
  test(`${kind}: a policy says which block makes room`, t => {
    for (const [eviction, priorities, left] of [
      [undefined, [50, 50], [4, 12]],
      [headsLonger, [50, 50], [8, 8]],
      [undefined, [60, 50], [12, 4]],
      [contrary, [60, 50], [4, 12]],
    ] as const) {
      using cache = make(eviction === undefined ? {} : { eviction })
      for (const [place, tokens] of [one, other].entries())
        cache.prompt(tokens, { priority: priorities[place] as number })
      t.deepEqual([cache.found(one), cache.found(other), cache.cached()], [12, 12, 6])
      cache.prompt(span(200, 200 + 2 * BLOCK), { named: false })
      t.deepEqual([cache.found(one), cache.found(other), cache.cached()], [...left, 4])
    }
  })

  test(`${kind}: whatever it answers, tails go before heads`, t => {
    const policies: readonly EvictionPolicy[] = [
      ({ depth }) => Math.min(depth, 127),
      ({ depth }) => Math.max(127 - depth, 0),
      ({ priority, depth }) => (depth % 2 === 0 ? 0 : priority),
      ({ priority, depth }) => (priority * 31 + depth * 17) % 128,
      () => 127,
    ]
    const prompts = [span(0, 20), span(100, 112), [...span(0, 8), ...span(200, 212)], span(300, 304)]
    for (const eviction of policies) {
      using cache = make({ eviction }, 20)
      for (const [place, tokens] of prompts.entries()) cache.prompt(tokens, { priority: (37 * place) % 101 })
      t.is(cache.cached(), (20 + 12 + 12 + 4) / BLOCK)
      for (let taken = 8; taken <= 20; taken++) {
        cache.prompt(span(0, taken * BLOCK), { named: false })
        const found = prompts.map(tokens => cache.found(tokens)) as [number, number, number, number]
        // Every block that is kept is found: none is left without those before it.
        const twice = Math.min(found[0], found[2], 8)
        t.is(
          (found.reduce((sum, length) => sum + length) - twice) / BLOCK,
          cache.cached(),
          `${taken} blocks, ${String(eviction)}`,
        )
        t.is(cache.cached(), Math.min(12, 20 - taken))
      }
    }
  })

  test(`${kind}: it is asked when the cache is made, about everything, and never again`, t => {
    const asked: Released[] = []
    const selves = new Set<unknown>()
    using cache = make({
      eviction(this: unknown, released: Released, ...more: unknown[]) {
        selves.add(this).add(more.length)
        asked.push(released)
        return released.depth % 128
      },
    })
    const [priorities, depths] = [span(0, 101), span(0, 256)]
    t.deepEqual(
      asked,
      priorities.flatMap(priority => depths.map(depth => ({ priority, depth }))),
    )
    t.is(new Set(asked).size, asked.length, 'each a new object')
    t.deepEqual([...selves], [undefined, 0])
    cache.prompt(one)
    cache.prompt(span(200, 224), { named: false })
    t.is(cache.found(one), 0)
    t.is(asked.length, 101 * 256)
  })

  test(`${kind}: what lies deeper than 255 counts as that`, t => {
    const deep = span(0, 300 * BLOCK)
    for (const [at, blocks] of [
      [255, 300],
      [254, 280],
      [256, 280],
    ] as const) {
      using cache = make({ eviction: ({ depth }) => (depth === at ? 60 : 50) }, 320)
      cache.prompt(deep)
      cache.prompt(span(5000, 5000 + 20 * BLOCK))
      // The later one makes room where the last block of the deep one ranks higher, and so all before it; else that one's tail.
      cache.prompt(span(9000, 9000 + 20 * BLOCK), { named: false })
      t.is(cache.found(deep), blocks * BLOCK, `${at}`)
    }
  })

  test(`${kind}: an answer that is no rank is refused, and nothing was made`, t => {
    const { usedBytes } = memoryStats()
    const expected = 'a whole number from 0 to 127'
    for (const value of [NaN, -1, 128, 1.5, Infinity, '5', 5n, null, undefined, true, {}, Promise.resolve(5)]) {
      const eviction = ({ priority, depth }: Released): never => (priority === 50 && depth === 3 ? value : 0) as never
      throwsCode(t, 'INVALID_ARGUMENT', () => make({ eviction }), {
        argument: 'eviction({ priority: 50, depth: 3 })',
        value:
          value instanceof Promise ? 'a promise' : typeof value === 'object' && value !== null ? 'an object' : value,
        expected,
      })
    }
    const error = throwsCode(t, 'INVALID_ARGUMENT', () => make({ eviction: () => 128 }))
    t.is(error.message, `eviction({ priority: 0, depth: 0 }) is 128, expected ${expected}`)
    for (const eviction of [null, 5, 'lru', {}, new Uint8Array(101 * 256)]) {
      throwsCode(t, 'INVALID_ARGUMENT', () => make({ eviction: eviction as never }), {
        argument: 'eviction',
        value:
          eviction instanceof Uint8Array
            ? 'Uint8Array of 25856 bytes'
            : typeof eviction === 'object' && eviction !== null
              ? 'an object'
              : eviction,
        expected: 'a function that returns the rank of a released block',
      })
    }
    const own = new Error('mine')
    const thrown = t.throws(() =>
      make({
        eviction: ({ priority }) => {
          if (priority < 100) return 0
          throw own
        },
      }),
    )
    t.is(thrown, own)
    t.is(memoryStats().usedBytes, usedBytes)
  })

  test(`${kind}: a policy may use other caches while it is asked`, t => {
    using cache = make({
      eviction: ({ priority, depth }) => {
        if (priority > 0 || depth > 0) return 50
        using inner = make({ eviction: () => 7 })
        inner.prompt(one)
        return inner.cached()
      },
    })
    cache.prompt(one)
    t.is(cache.found(one), 12)
  })
}
