// What lies in tiers below a cache is published as well: a router sends prompts to where they can come back from.
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'

import { PagedKvCache, PrefixRouter, type PromptOptions, publishEvents, type TierOptions } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

const OPTIONS = {
  capacity: 6,
  blockSize: 4,
  numLayers: 1,
  numKvHeads: 1,
  headDim: 2,
  events: 1000,
  prefixKey: new Uint8Array(32),
}

function compute(cache: PagedKvCache, tokens: readonly number[], prompt: PromptOptions = {}): void {
  const seq = cache.openSequence(prompt)
  const rows = { data: new Float32Array(tokens.length * 2), shape: [1, 1, tokens.length, 2] }
  seq.append({ tokens, k: rows, v: rows })
  cache.dropSequence(seq)
}

async function routed(t: ExecutionContext, tiers: TierOptions, expected: number): Promise<void> {
  using cache = new PagedKvCache({ ...OPTIONS, tiers })
  using router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' })
  router.follow('one', { endpoint: publisher.endpoint, replayEndpoint: publisher.replayEndpoint as string })
  const blocks = (tokens: readonly number[]): number | undefined => router.route(cache.keys(tokens))?.blocks
  compute(cache, span(0, 21))
  t.true(await until(() => blocks(span(0, 21)) === 5))
  // Makes the first prompt leave the cache itself.
  compute(cache, span(100, 121))
  compute(cache, span(200, 221))
  t.is(cache.match(span(0, 21)).length, 0)
  t.true(await cache.flush(60_000))
  t.true(await until(() => blocks(span(200, 221)) === 5))
  t.true(await until(() => blocks(span(0, 21)) === expected), `${blocks(span(0, 21))}`)
  cache.forgetPrefixes()
  t.true(await until(() => blocks(span(0, 21)) === 0))
}

test('a prompt that left for memory is routed there, and no more once it left that too', async t => {
  await routed(t, { memory: { limitBytes: 1e6 } }, 5)
  // Room for two blocks: the last two of the three prompts that left.
  await routed(t, { memory: { limitBytes: 170 } }, 0)
})

test('a block that no entry can hold is not published as stored, and counts as dropped', async t => {
  const path = await folderOf(t)
  using cache = new PagedKvCache({ ...OPTIONS, tiers: { disk: { path: join(path, 'kv') } } })
  using router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' })
  router.follow('one', { endpoint: publisher.endpoint, replayEndpoint: publisher.replayEndpoint as string })
  // More than an entry has room for.
  const extra = [{ start: 0, end: 8, key: new Uint8Array(70_000) }]
  const blocks = (tokens: readonly number[], prompt = {}): number | undefined =>
    router.route(cache.keys(tokens, prompt))?.blocks
  compute(cache, span(0, 9), { extra })
  t.true(await until(() => blocks(span(0, 9), { extra }) === 2))
  compute(cache, span(100, 121))
  compute(cache, span(200, 221))
  t.true(await cache.flush(60_000))
  t.true(await until(() => blocks(span(100, 121)) === 5))
  t.is(blocks(span(0, 9), { extra }), 0)
  const { dropped = 0 } = cache.stats().tiers?.disk ?? {}
  // Each of the two is tried when it is committed, and again when it is evicted.
  t.true(dropped >= 2, `${dropped}`)
})

test('a prompt that is on the disk is routed there', async t => {
  const path = await folderOf(t)
  await routed(t, { disk: { path: join(path, 'kv') } }, 5)
})

test('blocks that reach the disk turns after they were evicted are routed there', async t => {
  const path = await folderOf(t)
  // A block of 8 MiB is not written within the turn in which it is evicted.
  const [headDim, blockSize] = [2 ** 14, 64]
  using cache = new PagedKvCache({
    ...OPTIONS,
    blockSize,
    headDim,
    capacity: 2,
    tiers: { disk: { path: join(path, 'kv') } },
  })
  using router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' })
  router.follow('one', { endpoint: publisher.endpoint, replayEndpoint: publisher.replayEndpoint as string })
  const rows = { data: new Float32Array(blockSize * headDim), shape: [1, 1, blockSize, headDim] }
  const prompts = span(0, 8).map(start => span(start * 1000, start * 1000 + blockSize))
  for (const tokens of prompts) {
    const seq = cache.openSequence()
    seq.append({ tokens, k: rows, v: rows })
    seq.drop()
    // What changed is published at the end of the turn.
    await setImmediate()
  }
  t.true(await cache.flush(60_000))
  const found = (): number => prompts.filter(tokens => router.route(cache.keys(tokens))?.blocks === 1).length
  t.true(await until(() => found() === prompts.length), `${found()} of ${prompts.length}`)
})
