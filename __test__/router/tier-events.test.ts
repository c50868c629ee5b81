// What lies in tiers below a cache is published as well: a router sends prompts to where they can come back from.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'

import { PagedKvCache, PrefixRouter, publishEvents, type TierOptions } from '../../index.js'
import { span } from '../support/tokens.js'

const OPTIONS = { capacity: 6, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 2, events: 1000, prefixKey: new Uint8Array(32) }

function compute(cache: PagedKvCache, tokens: readonly number[]): void {
  const seq = cache.openSequence()
  const rows = { data: new Float32Array(tokens.length * 2), shape: [1, 1, tokens.length, 2] }
  seq.append({ tokens, k: rows, v: rows })
  cache.dropSequence(seq)
}

/** Looks until it holds, for some seconds. */
async function holds(call: () => boolean): Promise<boolean> {
  for (let turn = 0; turn < 500 && !call(); turn++) await setTimeout(10)
  return call()
}

async function routed(t: ExecutionContext, tiers: TierOptions, expected: number): Promise<void> {
  using cache = new PagedKvCache({ ...OPTIONS, tiers })
  using router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' })
  router.follow('one', { endpoint: publisher.endpoint, replayEndpoint: publisher.replayEndpoint as string })
  const blocks = (tokens: readonly number[]): number | undefined => router.route(cache.keys(tokens))?.blocks
  compute(cache, span(0, 21))
  t.true(await holds(() => blocks(span(0, 21)) === 5))
  // Makes the first prompt leave the cache itself.
  compute(cache, span(100, 121))
  compute(cache, span(200, 221))
  t.is(cache.match(span(0, 21)).length, 0)
  t.true(await cache.flush())
  t.true(await holds(() => blocks(span(200, 221)) === 5))
  t.true(await holds(() => blocks(span(0, 21)) === expected), `${blocks(span(0, 21))}`)
  cache.forgetPrefixes()
  t.true(await holds(() => blocks(span(0, 21)) === 0))
}

test('a prompt that left for memory is routed there, and no more once it left that too', async t => {
  await routed(t, { memory: { limitBytes: 1e6 } }, 5)
  // Room for two blocks: the last two of the three prompts that left.
  await routed(t, { memory: { limitBytes: 170 } }, 0)
})

test('a prompt that is on the disk is routed there', async t => {
  const path = await mkdtemp(join(tmpdir(), 'kvtide-'))
  await routed(t, { disk: { path: join(path, 'kv') } }, 5)
  await rm(path, { recursive: true })
})
