// The number of times that a match crosses the border into the addon: its cost with your own store, besides the store.
import test from 'ava'

import { type BlockStore, PagedKvCache } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { layered, LAYERED } from '../support/layered.js'
import { span } from '../support/tokens.js'

/** Returns the names of calls of the addon's classes while `work` runs. */
async function calls(work: () => Promise<unknown>): Promise<string[]> {
  const [made, ends]: [string[], (() => void)[]] = [[], []]
  for (const { prototype } of [
    binding.NativePagedKvCache,
    binding.NativeTiers,
    binding.NativeDriver,
    binding.NativePagedPrefix,
  ]) {
    for (const [name, described] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
      const method: unknown = described.value
      if (typeof method !== 'function' || name === 'constructor') continue
      const counted = function (this: unknown, ...given: unknown[]): unknown {
        made.push(name)
        return Reflect.apply(method, this, given)
      }
      Object.defineProperty(prototype, name, { ...described, value: counted })
      ends.push(() => Object.defineProperty(prototype, name, described))
    }
  }
  try {
    await work()
  } finally {
    for (const end of ends) end()
  }
  // Offloads at the end of a turn are not part of a match.
  return made.filter(name => name !== 'offload')
}

test.serial("a match of n entries in a store of one's own crosses the border at most 3 + n times", async t => {
  const values = new Map<string, Uint8Array>()
  const store: BlockStore = {
    getMany: async keys => keys.map(key => values.get(key)),
    putMany: async entries => entries.forEach(({ key, value }) => values.set(key, value.slice())),
    hasMany: async keys => keys.map(key => values.has(key)),
  }
  const tiers = { deadline: 60_000, store: { store, secret: new Uint8Array(32), compress: true } }
  using cache = new PagedKvCache({ ...LAYERED, tiers })
  const [k, v] = layered(span(0, 41))
  cache.openSequence().append({ k, v, tokens: span(0, 41) })
  t.true(await cache.flush(60_000))
  for (const n of [0, 1, 2, 10]) {
    using other = new PagedKvCache({ ...LAYERED, tiers })
    const prompt = n === 0 ? span(100, 141) : span(0, 4 * n + 1)
    const crossings = await calls(async () => t.is((await other.match(prompt, { tiers: 'all' })).length, 4 * n))
    t.true(crossings.length <= 3 + n, `${n} entries: ${crossings.join()}`)
    t.deepEqual(crossings, n === 0 ? ['restore', 'answer', 'end'] : ['restore', 'answer', 'answer', 'end'])
  }
})
