// Dynamo's indexer behind DynamoRouter: what it finds is what PrefixRouter and the caches find; and whatever answers in its place is an error in time.
import { createServer, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import { setTimeout } from 'node:timers/promises'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'

import test, { type ExecutionContext } from 'ava'

import { DynamoRouter, type EventPublisher, PagedKvCache, PrefixRouter, publishEvents } from '../../index.js'
import { Indexer, withDynamo } from '../support/dynamo.js'
import { freePort } from '../support/redis.js'
import { rejected, throwsCode } from '../support/throws.js'
import { until } from '../support/until.js'

const BLOCK = 4
const SIZES = { capacity: 24, blockSize: BLOCK, numLayers: 1, numKvHeads: 1, headDim: 1, events: 10_000 }
const LOOPBACK = { endpoint: 'tcp://127.0.0.1:0', replayEndpoint: 'tcp://127.0.0.1:0' }
const SOMEWHERE = { endpoint: 'tcp://127.0.0.1:1' }

/** Blocks by the names of workers. */
const byWorker = (routes: readonly { worker: string; blocks: number }[]): object =>
  Object.fromEntries(routes.map(({ worker, blocks }) => [worker, blocks]))

function numbers(t: ExecutionContext): (limit: number) => number {
  let state = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
  t.log(`KVTIDE_SEED=${state}`)
  return limit => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * limit)
  }
}

/** A prompt of a small world, in which prompts share beginnings; the token behind its blocks is never found. */
function prompt(below: (limit: number) => number): number[] {
  let branch = 0
  const blocks = Array.from({ length: 1 + below(8) }, (_, block) => {
    if (block === 0 || below(4) === 0) branch = below(3)
    return Array.from({ length: BLOCK }, (_token, token) => 1 + branch * 1000 + block * 10 + token)
  })
  return [...blocks.flat(), 7]
}

function compute(cache: PagedKvCache, tokens: readonly number[]): void {
  const seq = cache.openSequence({ prefix: cache.match(tokens) })
  const rest = tokens.slice(seq.length)
  const data = { data: Float32Array.from(rest), shape: [1, 1, rest.length, 1] }
  seq.append({ tokens: rest, k: data, v: data })
  seq.drop()
}

function found(cache: PagedKvCache, tokens: readonly number[]): number {
  using match = cache.match(tokens)
  return match.length / BLOCK
}

/** A cache, and what is published of it: both end, and come again on the same endpoints. */
class Worker {
  cache = new PagedKvCache(SIZES)
  publisher: EventPublisher | undefined
  readonly name: string
  readonly place: number
  #marks = 0

  constructor(name: string, place: number) {
    this.name = name
    this.place = place
  }

  async publish(where: { endpoint: string; replayEndpoint: string } = LOOPBACK, first = 0): Promise<void> {
    for (let turn = 0; this.publisher === undefined; turn++) {
      try {
        this.publisher = await publishEvents(this.cache, { ...where, first })
      } catch (error) {
        if (turn === 200) throw error
        await setTimeout(25)
      }
    }
  }

  get where(): { endpoint: string; replayEndpoint: string } {
    const { endpoint, replayEndpoint } = this.publisher as EventPublisher
    return { endpoint, replayEndpoint: replayEndpoint as string }
  }

  async restart(): Promise<void> {
    const { where, publisher } = this
    const { next } = publisher as EventPublisher
    this.end()
    this.cache = new PagedKvCache(SIZES)
    await this.publish(where, next + 10)
  }

  end(): void {
    this.publisher?.dispose()
    this.publisher = undefined
    this.cache.dispose()
  }

  /** A new prompt. */
  mark(): number[] {
    this.#marks += 1
    return [
      ...Array.from({ length: BLOCK }, (_, token) => 1_000_000 + (this.place * 10_000 + this.#marks) * 8 + token),
      7,
    ]
  }
}

/** Waits until a router has everything of a worker: a block that is published last is found. */
async function settled(
  t: ExecutionContext,
  worker: Worker,
  has: (tokens: number[]) => Promise<boolean>,
): Promise<void> {
  for (const start = performance.now(); performance.now() - start < 60_000;) {
    // More of them, since a subscriber that has to connect again learns of a gap from the next message alone.
    const tokens = worker.mark()
    compute(worker.cache, tokens)
    for (const polled = performance.now(); performance.now() - polled < 500; await setTimeout(5))
      if (await has(tokens)) return
  }
  t.fail(`${worker.name} is not followed`)
}

withDynamo('Dynamo finds what PrefixRouter finds, and what the caches find', async t => {
  const below = numbers(t)
  const indexer = await Indexer.start()
  t.teardown(() => indexer.stop())
  using dynamo = new DynamoRouter({ url: indexer.url, blockSize: BLOCK, model: 'm', deadline: 10_000 })
  using router = new PrefixRouter()
  t.is(await dynamo.route(prompt(below)), undefined)
  t.deepEqual(await dynamo.lengths(prompt(below)), [], 'a model that it does not know')
  const workers = ['one', 'two', 'three'].map((name, place) => new Worker(name, place))
  t.teardown(() => workers.forEach(worker => worker.end()))
  for (const worker of workers) {
    // One has published before the indexer listens.
    if (worker.place === 0) compute(worker.cache, prompt(below))
    await worker.publish()
    await dynamo.addWorker(worker.name, worker.where)
    router.addWorker(worker.name)
    router.follow(worker.name, worker.where)
  }
  let compared = 0
  for (let round = 0; round < 9; round++) {
    for (const worker of workers) {
      if (round % 3 === 2 && worker.place === (round - 2) / 3) await worker.restart()
      for (let turn = 0; turn < 6; turn++) compute(worker.cache, prompt(below))
      if (round === 4 && worker.place === 0) worker.cache.forgetPrefixes()
      await settled(
        t,
        worker,
        async tokens =>
          (await dynamo.lengths(tokens)).length > 0 && router.lengths(worker.cache.keys(tokens)).length > 0,
      )
    }
    for (let turn = 0; turn < 30; turn++) {
      const tokens = prompt(below)
      const own = byWorker(
        workers
          .map(({ name, cache }) => ({ worker: name, blocks: found(cache, tokens) }))
          .filter(({ blocks }) => blocks > 0),
      )
      t.deepEqual(byWorker(await dynamo.lengths(tokens)), own, `round ${round}: ${tokens.join()}`)
      t.deepEqual(
        byWorker(router.lengths((workers[0] as Worker).cache.keys(tokens))),
        own,
        `round ${round}: ${tokens.join()}`,
      )
      const longest = Math.max(0, ...Object.values(own as Record<string, number>))
      t.is((await dynamo.route(tokens))?.blocks, longest)
      compared += 1
    }
  }
  t.log(`${compared} prompts compared`)
  t.true(workers.some(({ cache }) => cache.stats().evictions > 0))
})

withDynamo(
  'workers that are added twice, are gone, and come again; an indexer that is stopped, and one that knows no worker',
  async t => {
    const indexer = await Indexer.start()
    t.teardown(() => indexer.stop())
    const worker = new Worker('one', 0)
    t.teardown(() => worker.end())
    await worker.publish()
    compute(worker.cache, [1, 2, 3, 4, 5])
    const options = { url: `${indexer.url}/`, blockSize: BLOCK, model: 'm', deadline: 2000 }
    using dynamo = new DynamoRouter(options)
    using other = new DynamoRouter(options)
    await dynamo.addWorker('one', worker.where)
    t.is((await rejected(dynamo.addWorker('one', worker.where), 'INVALID_ARGUMENT')).details.argument, 'worker')
    await other.addWorker('one', worker.where)
    using third = new DynamoRouter(options)
    t.regex((await rejected(third.addWorker('one', SOMEWHERE), 'IO_ERROR')).details.reason, /409.*already registered/)
    using larger = new DynamoRouter({ ...options, blockSize: 8 })
    t.regex((await rejected(larger.addWorker('two', SOMEWHERE), 'IO_ERROR')).details.reason, /block_size mismatch/)
    await settled(t, worker, async tokens => (await dynamo.lengths(tokens)).length > 0)
    t.deepEqual(await other.route([1, 2, 3, 4, 5]), { worker: 'one', blocks: 1 })
    t.is(await third.route([1, 2, 3, 4, 5]), undefined, 'it has no workers of its own')
    await dynamo.addWorker('idle', SOMEWHERE)
    dynamo.setLoad('one', 5)
    t.deepEqual(await dynamo.route([1, 2, 3, 4, 5]), { worker: 'one', blocks: 1 })
    t.deepEqual(await dynamo.route([1, 2, 3, 4, 5], { loadWeight: 1 }), { worker: 'idle', blocks: 0 })
    t.deepEqual(await dynamo.route([9, 9, 9, 9]), { worker: 'idle', blocks: 0 })
    await dynamo.removeWorker('one')
    t.deepEqual(await dynamo.lengths([1, 2, 3, 4, 5]), [])
    await other.removeWorker('one')
    await dynamo.addWorker('one', worker.where)
    await settled(t, worker, async tokens => (await dynamo.lengths(tokens)).length > 0)
    await indexer.signal('SIGSTOP')
    t.is((await rejected(dynamo.route([1, 2, 3, 4, 5]), 'IO_ERROR')).details.reason, 'no answer in 2000 ms')
    await indexer.signal('SIGCONT')
    await indexer.stop()
    const { details } = await rejected(dynamo.lengths([1, 2, 3, 4, 5]), 'IO_ERROR')
    t.deepEqual([details.operation, details.path], ['ask', `${indexer.url}/query`])
    const again = await Indexer.start(indexer.port)
    t.teardown(() => again.stop())
    t.deepEqual(await dynamo.lengths([1, 2, 3, 4, 5]), [])
    await dynamo.removeWorker('one')
    await dynamo.addWorker('one', worker.where)
    await settled(t, worker, async tokens => (await dynamo.lengths(tokens)).length > 0)
    t.deepEqual(await dynamo.lengths([1, 2, 3, 4, 5]), [{ worker: 'one', blocks: 1 }])
  },
)

/** Starts a server on the loopback, and returns its address. */
async function served(t: ExecutionContext, answer: RequestListener): Promise<string> {
  const server: Server = createServer(answer)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** A server that answers one thing to everything but registrations, whose numbers it notes. */
function answering(
  t: ExecutionContext,
  answer: (response: ServerResponse) => void,
  registered: number[] = [],
): Promise<string> {
  return served(t, (request, response) => {
    if (request.url !== '/register') return answer(response)
    void json(request).then(body => {
      registered.push((body as { instance_id: number }).instance_id)
      response.writeHead(201).end('{}')
    })
  })
}

test('what is no answer of an indexer is an error, and nothing is routed by it', async t => {
  const bodies = [
    '',
    'nonsense',
    'null',
    '[]',
    '{}',
    '{"instances":5}',
    '{"instances":{"1":null}}',
    '{"instances":{"1":{}}}',
    '{"instances":{"1":{"longest_matched":-1}}}',
    '{"instances":{"1":{"longest_matched":1.5}}}',
    '{"instances":{"1":{"longest_matched":"4"}}}',
    '{"instances":{"1":{"longest_matched":4}}',
    '<html>'.repeat(1000),
  ]
  for (const [status, body] of [
    ...bodies.map(answered => [200, answered] as const),
    [500, '{"instances":{}}'],
    [404, '{"error":"no such page"}'],
    [302, ''],
  ] as const) {
    const url = await answering(t, response => response.writeHead(status, { location: '/' }).end(body))
    using dynamo = new DynamoRouter({ url, blockSize: 2, deadline: 60_000 })
    await dynamo.addWorker('one', SOMEWHERE)
    const error = await rejected(dynamo.route([1, 2, 3]), 'IO_ERROR')
    t.deepEqual([error.details.operation, error.details.path], ['ask', `${url}/query`], body)
    t.true(error.message.length < 600)
    await rejected(dynamo.lengths([1, 2, 3]), 'IO_ERROR')
    // What no block is asked for is answered without it.
    t.deepEqual(await dynamo.route([1]), { worker: 'one', blocks: 0 })
  }
})

test('prompts spread over workers that are alike, and those that begin alike do not', async t => {
  const url = await answering(t, response => response.writeHead(200).end('{"instances":{}}'))
  using dynamo = new DynamoRouter({ url, blockSize: 2, deadline: 60_000 })
  const names = ['one', 'two', 'three', 'four']
  for (const name of names) await dynamo.addWorker(name, SOMEWHERE)
  const counts = new Map<string | undefined, number>()
  for (let first = 0; first < 200; first++) {
    const route = await dynamo.route([first, 7, 1])
    t.deepEqual(await dynamo.route([first, 7, 2, 3]), route)
    counts.set(route?.worker, (counts.get(route?.worker) ?? 0) + 1)
  }
  t.true(
    names.every(name => (counts.get(name) ?? 0) > 25),
    JSON.stringify([...counts]),
  )
  dynamo.setLoad('three', -1)
  t.is((await dynamo.route([1, 7, 1]))?.worker, 'three')
})

test('answers that end too soon, too late or never are errors in time', async t => {
  for (const answer of [
    (response: ServerResponse) => response.destroy(),
    (response: ServerResponse) => response.writeHead(200, { 'content-length': 100 }).write('{"instances"'),
    () => {},
  ]) {
    using dynamo = new DynamoRouter({ url: await answering(t, answer), blockSize: 2, deadline: 2000 })
    await dynamo.addWorker('one', SOMEWHERE)
    await rejected(dynamo.route([1, 2]), 'IO_ERROR')
  }
  using nobody = new DynamoRouter({ url: `http://127.0.0.1:${await freePort()}`, blockSize: 2 })
  t.is((await rejected(nobody.addWorker('one', SOMEWHERE), 'IO_ERROR')).details.reason, 'ECONNREFUSED')
  throwsCode(t, 'INVALID_ARGUMENT', () => nobody.setLoad('one', 1))
  t.is(await nobody.route([1, 2]), undefined)
})

/** Nothing but empty files of gzip: of no bytes a body is made, however long it goes on. */
function endless(response: ServerResponse): void {
  const empty = Buffer.concat(Array.from({ length: 1000 }, () => gzipSync('')))
  const more = (): void => {
    while (!response.destroyed && response.write(empty));
  }
  response.on('drain', more)
  more()
}

test.serial('a body is read up to a bound, decompressed or not, and until the deadline', async t => {
  const zeros = Buffer.alloc(24 * 2 ** 20)
  for (const [encoding, body] of [
    ['identity', zeros],
    ['gzip', gzipSync(zeros)],
    ['deflate', deflateSync(zeros)],
    ['br', brotliCompressSync(zeros)],
    ['gzip, gzip', gzipSync(gzipSync(zeros))],
  ] as const) {
    using dynamo = new DynamoRouter({
      url: await answering(t, response => response.writeHead(200, { 'content-encoding': encoding }).end(body)),
      blockSize: 2,
      deadline: 60_000,
    })
    await dynamo.addWorker('one', SOMEWHERE)
    t.is(
      (await rejected(dynamo.route([1, 2, 3]), 'IO_ERROR')).details.reason,
      'the answer has more than 8388608 bytes',
      encoding,
    )
  }
  // One that is compressed is read all the same.
  const answer = gzipSync('{"instances":{}}')
  using patient = new DynamoRouter({
    url: await answering(t, response => response.writeHead(200, { 'content-encoding': 'gzip' }).end(answer)),
    blockSize: 2,
    deadline: 60_000,
  })
  await patient.addWorker('one', SOMEWHERE)
  t.deepEqual(await patient.route([1, 2, 3]), { worker: 'one', blocks: 0 })
  using late = new DynamoRouter({
    url: await answering(t, response => endless(response.writeHead(200, { 'content-encoding': 'gzip' }))),
    blockSize: 2,
    deadline: 3000,
  })
  await late.addWorker('one', SOMEWHERE)
  t.is((await rejected(late.route([1, 2, 3]), 'IO_ERROR')).details.reason, 'no answer in 3000 ms')
})

test('an answer that never ends is late also when garbage was collected meanwhile', async t => {
  const url = await answering(t, response => response.writeHead(200, { 'content-length': 100 }).write('{"instances"'))
  using dynamo = new DynamoRouter({ url, blockSize: 2, deadline: 5000 })
  await dynamo.addWorker('one', SOMEWHERE)
  const { gc } = globalThis
  if (gc === undefined) throw new Error('the tests run with --expose-gc')
  const collecting = setInterval(() => void gc(), 5)
  t.teardown(() => clearInterval(collecting))
  t.is((await rejected(dynamo.route([1, 2]), 'IO_ERROR')).details.reason, 'no answer in 5000 ms')
})

test('a registration that fails late does not remove a newer worker of the same name', async t => {
  const held: ServerResponse[] = []
  const url = await served(t, (request, response) => {
    if (request.url === '/register' && held.length === 0) held.push(response)
    else response.writeHead(request.url === '/register' ? 201 : 200).end('{}')
  })
  using dynamo = new DynamoRouter({ url, blockSize: 2, deadline: 60_000 })
  const first = dynamo.addWorker('one', SOMEWHERE)
  t.true(await until(() => held.length === 1))
  await dynamo.removeWorker('one')
  await dynamo.addWorker('one', SOMEWHERE)
  held[0]?.writeHead(500).end()
  await rejected(first, 'IO_ERROR')
  t.deepEqual(await dynamo.route([1]), { worker: 'one', blocks: 0 })
})

test('more than was asked for, and workers of others, count for nothing', async t => {
  const registered: number[] = []
  const url = await answering(
    t,
    response => {
      const [one] = registered as [number]
      response.end(
        JSON.stringify({ instances: { [one]: { longest_matched: 1000 }, [one + 1]: { longest_matched: 4 } }, more: 1 }),
      )
    },
    registered,
  )
  using dynamo = new DynamoRouter({ url, blockSize: 2, deadline: 60_000 })
  await dynamo.addWorker('one', SOMEWHERE)
  await dynamo.addWorker('two', SOMEWHERE)
  t.true(registered.every(id => Number.isSafeInteger(id)) && new Set(registered).size === 2)
  t.deepEqual(await dynamo.route([1, 2, 3, 4, 5]), { worker: 'one', blocks: 2 })
  t.deepEqual(await dynamo.lengths([1, 2, 3, 4, 5]), [{ worker: 'one', blocks: 2 }])
  // Another process that asks the same indexer means the same worker.
  using other = new DynamoRouter({ url, blockSize: 2, deadline: 60_000 })
  await other.addWorker('one', SOMEWHERE)
  t.is(registered[2], registered[0])
})

test('a router that is disposed of ends its calls, and what is given wrongly is refused', async t => {
  const url = await answering(t, () => {})
  const dynamo = new DynamoRouter({ url, blockSize: 2, deadline: 60_000 })
  await dynamo.addWorker('one', SOMEWHERE)
  const routing = dynamo.route([1, 2])
  dynamo.dispose()
  t.is((await rejected(routing, 'DISPOSED')).details.object, 'DynamoRouter')
  await rejected(dynamo.route([1, 2]), 'DISPOSED')
  for (const wrong of [
    '',
    'nowhere',
    'ftp://host',
    'http://user:password@host',
    'http://host?a=1',
    'http://host#a',
    'tcp://127.0.0.1:1',
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => new DynamoRouter({ url: wrong, blockSize: 2 }))
  }
  for (const options of [
    { url, blockSize: 0 },
    { url, blockSize: 2, deadline: 0 },
    { url, blockSize: 2, modle: 'm' },
  ])
    throwsCode(t, 'INVALID_ARGUMENT', () => new DynamoRouter(options))
})
