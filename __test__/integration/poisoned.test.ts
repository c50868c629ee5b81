// A cache that a panic has left unusable: its calls say so, what works in the background for it ends quietly, and other caches go on.
import { setTimeout } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'

import { inspect } from '../../inspector.js'
import { type BlockStore, KvTideError, PagedKvCache, publishEvents } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { layered, LAYERED } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const shelf: BlockStore = {
  getMany: async keys => keys.map(() => undefined),
  putMany: async () => undefined,
  hasMany: async keys => keys.map(() => false),
}

const cacheOf = (): PagedKvCache =>
  new PagedKvCache({ ...LAYERED, events: 64, tiers: { memory: { limitBytes: 1e6 }, store: { store: shelf } } })

/** Lets every native call of these names throw `POISONED`, as it does after a panic, until the test ends. */
function poison(t: ExecutionContext, classes: Readonly<Record<string, readonly string[]>>): { calls: number } {
  const made = { calls: 0 }
  for (const [owner, names] of Object.entries(classes)) {
    const { prototype } = Reflect.get(binding, owner) as { prototype: Record<string, unknown> }
    for (const name of names) {
      const own = prototype[name]
      t.is(typeof own, 'function', `${owner}#${name}`)
      prototype[name] = () => {
        made.calls += 1
        throw new KvTideError('POISONED', 'an earlier call panicked', {})
      }
      t.teardown(() => {
        prototype[name] = own
      })
    }
  }
  return made
}

test.serial('what works in the background for a cache that is poisoned ends quietly', async t => {
  const cache = cacheOf()
  const publisher = await publishEvents(cache, { endpoint: 'tcp://127.0.0.1:0' })
  await using inspector = inspect(cache)
  await inspector.listen()
  const sequence = cache.openSequence()
  const [k, v] = layered(span(0, 8))
  sequence.append({ k, v, tokens: span(0, 8) })
  const made = poison(t, { NativeTiers: ['offload'], NativePublisher: ['publish'], NativePagedKvCache: ['stats'] })
  throwsCode(t, 'POISONED', () => cache.stats())
  // This wakes tiers and publisher in a microtask; the publisher also looks ten times a second. An error in either would end the process.
  sequence.dispose()
  await setTimeout(250)
  t.true(made.calls >= 3, `${made.calls} calls`)
  publisher.dispose()
  cache.dispose()
})

test.serial('publishing a cache that is poisoned is refused', async t => {
  using cache = cacheOf()
  poison(t, { NativePublisher: ['publish'] })
  const error = await t.throwsAsync(publishEvents(cache, { endpoint: 'tcp://127.0.0.1:0' }))
  t.is((error as KvTideError).code, 'POISONED')
})

test.serial('another cache goes on beside one that is poisoned', async t => {
  using cache = cacheOf()
  const [k, v] = layered(span(0, 8))
  using sequence = cache.openSequence()
  sequence.append({ k, v, tokens: span(0, 8) })
  t.true(await cache.flush(60_000))
  using match = await cache.match(span(0, 9), { tiers: 'all' })
  t.is(match.length, 8)
})
