// Attention off the main thread: its inputs stay unchanged until it ends, however it ends.
import { once } from 'node:events'

import test, { type ExecutionContext } from 'ava'

import {
  attend,
  attendAsync,
  type AsyncOptions,
  type AttendOptions,
  type ErrorCode,
  type HostTensor,
  isKvTideError,
  type Kv,
  KvCache,
  memoryStats,
  PagedKvCache,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
} from '../../index.js'
import { runProcess } from '../support/packaging/child.js'
import { addonPath } from '../support/packaging/package-copy.js'
import { collectAll, collected } from '../support/garbage.js'
import { throwsCode } from '../support/throws.js'
import { span, tokens } from '../support/tokens.js'
import { startWorker } from '../support/worker.js'

const kvOptions = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 64, headDim: 1 } as const

/** Attention over so many tokens that it takes long, unless it is aborted. */
function long(count: number, options: AttendOptions & AsyncOptions = {}): Promise<unknown> {
  const many: HostTensor = { data: new Float32Array(64 * count), shape: [1, 1, count, 64] }
  return attendAsync(many, { k: many, v: many }, { causal: false, threads: 1, ...options })
}

/** Begins work while every thread of the runtime is busy, so that none of it can be done before `begin` has returned. */
async function whileAllAreTaken<T>(begin: () => T): Promise<T> {
  const controller = new AbortController()
  const taken = span(0, 4).map(() => long(40_000, { signal: controller.signal }).catch(() => undefined))
  const begun = begin()
  controller.abort()
  await Promise.all(taken)
  return begun
}

async function rejects(t: ExecutionContext, code: ErrorCode, promise: Promise<unknown>): Promise<Error | undefined> {
  const error = await t.throwsAsync(promise)
  t.true(isKvTideError(error) && error.code === code, String(error))
  t.true(error?.stack?.startsWith(`KvTideError [${code}]: `))
  return error
}

test('it gives what the call that waits gives', async t => {
  using cache = new KvCache(kvOptions)
  const kv = cache.update(tokens(0, 5), tokens(5, 10))
  const q = tokens(3, 5)
  for (const options of [
    {},
    { window: 2 },
    { sinkLogits: [1] },
    { alibiSlopes: [0.5] },
    { mask: { data: new Float32Array(10).fill(-1), shape: [2, 5] } },
    { mask: Tensor.from(new Float32Array(5).fill(1), [5]), starts: [1] },
    { tree: [-1, 0] },
    { positions: [4, 2] },
  ]) {
    const wanted = attend(q, kv, { ...options, returnLse: true })
    const found = await attendAsync(q, kv, { ...options, returnLse: true })
    t.deepEqual([found.out.toArray(), found.lse], [wanted.out.toArray(), wanted.lse])
    t.false('lse' in (await attendAsync(q, kv, options)))
  }
  const ragged = {
    k: { data: new Float32Array(3), shape: [3, 1, 1] },
    v: { data: Float32Array.of(1, 2, 4), shape: [3, 1, 1] },
    kvOffsets: [0, 2, 3],
  }
  const two = { data: new Float32Array(2), shape: [2, 1, 1] }
  t.deepEqual(Array.from((await attendAsync(two, ragged)).out.toArray()), [1.5, 4])
})

/** Every call that changes a cache, with the expected content of the cache in the meantime. */
function changes(): { cache: Disposable; kv: Pick<Kv, 'k' | 'v'>; calls: (() => unknown)[] }[] {
  const kv = new KvCache(kvOptions)
  const [kvSeen, kvSnapshot] = [kv.update(tokens(0, 4), tokens(4, 8)), kv.snapshot()]
  const pair = new RotatingKvCache({ maxSeqLen: 3, sinks: 1 })
  const [pairSeen, pairSnapshot] = [pair.append(tokens(0, 4), tokens(4, 8)), pair.snapshot()]
  const single = new RotatingCache({ dim: 2, maxSeqLen: 4 })
  const [singleSeen, singleSnapshot] = [single.append(tokens(0, 4)), single.snapshot()]
  const rollback = new RollbackCache()
  const [rollbackSeen, mark] = [rollback.append(tokens(0, 4), tokens(4, 8)), rollback.snapshot()]
  const one = tokens(0, 1)
  return [
    {
      cache: kv,
      kv: kvSeen,
      calls: [
        () => kv.update(one, one),
        () => kv.updateFused(one, one),
        () => kv.incrementSeqLen(),
        () => kv.truncate(1),
        () => kv.reset(),
        () => kv.restore(kvSnapshot),
      ],
    },
    {
      cache: pair,
      kv: pairSeen,
      calls: [
        () => pair.append(one, one),
        () => pair.trySetLen(1),
        () => pair.setLen(1),
        () => pair.reset(),
        () => pair.restore(pairSnapshot),
      ],
    },
    {
      cache: single,
      kv: { k: singleSeen, v: singleSeen },
      calls: [
        () => single.append(one),
        () => single.setLen(1),
        () => single.reset(),
        () => single.restore(singleSnapshot),
      ],
    },
    {
      cache: rollback,
      kv: rollbackSeen,
      calls: [
        () => rollback.append(one, one),
        () => rollback.commit(),
        () => rollback.rollback(mark),
        () => rollback.acceptPath([0]),
      ],
    },
  ]
}

test('calls that change what is read are refused until it ends, and reads go on', async t => {
  for (const { cache, kv, calls } of changes()) {
    const wanted = attend(tokens(1, 2), kv).out
    const read = attendAsync(tokens(1, 2), kv)
    for (const call of calls) throwsCode(t, 'BUSY', call)
    t.deepEqual(Array.from(kv.k.toFloat32Array()), span(0, 4))
    t.true(attend(tokens(1, 2), kv).out.equals(wanted))
    t.true((await read).out.equals(wanted))
    t.notThrows(calls[0] as () => unknown)
    cache[Symbol.dispose]()
  }
})

test('pages that are read do not change, and are read and disposed of meanwhile', async t => {
  const cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1 })
  const seq = cache.createSequence()
  const one = Float32Array.of(1)
  for (const pos of span(0, 3)) cache.writeKv(seq, 0, pos, one, Float32Array.of(pos))
  const q = { data: new Float32Array(1), shape: [1, 1, 1] }
  const pages = [
    { cache, layer: 0, sequences: [seq] },
    { cache, layer: 0, blockTables: Int32Array.of(0, 1), lengths: Int32Array.of(3) },
  ]
  for (const kv of pages) {
    const read = attendAsync(q, kv)
    for (const call of [
      () => cache.createSequence(),
      () => cache.writeKv(seq, 0, 3, one, one),
      () => cache.ensureCapacity(seq, 4),
      () => cache.dropSequence(seq),
    ])
      throwsCode(t, 'BUSY', call)
    t.deepEqual([cache.sequenceLength(seq), cache.freeCount, cache.readKv(seq, 0, 2).value[0]], [3, 2, 2])
    t.is(attend(q, kv).out.toArray()[0], 1)
    t.is((await read).out.toArray()[0], 1)
  }
  cache.writeKv(seq, 0, 3, one, one)
  const { read } = await whileAllAreTaken(() => {
    const begun = { read: attendAsync(q, pages[0] as (typeof pages)[0]) }
    cache.dispose()
    return begun
  })
  t.is((await read).out.toArray()[0], 1)
  throwsCode(t, 'DISPOSED', () => cache.freeCount)
})

test('two readers are two: the cache is free when both have ended', async t => {
  using cache = new KvCache(kvOptions)
  const kv = cache.update(tokens(0, 4), tokens(0, 4))
  const controller = new AbortController()
  const [first, second] = [attendAsync(tokens(0, 1), kv, { signal: controller.signal }), attendAsync(tokens(0, 1), kv)]
  controller.abort()
  await rejects(t, 'ABORTED', first)
  await second
  cache.truncate(0)
  // A refused call leaves no reader behind.
  await rejects(t, 'SHAPE_MISMATCH', attendAsync(tokens(0, 1), { k: kv.k, v: tokens(0, 3) }))
  await rejects(t, 'SHAPE_MISMATCH', attendAsync(tokens(0, 1), kv, {}, new Float32Array(2)))
  cache.reset()
})

/** Disposes of all inputs while they are read. */
async function disposeMeanwhile(t: ExecutionContext): Promise<void> {
  for (const { cache, kv } of changes()) {
    const wanted = attend(tokens(1, 2), kv).out.toArray()
    const { read } = await whileAllAreTaken(() => {
      const begun = { read: attendAsync(tokens(1, 2), kv) }
      cache[Symbol.dispose]()
      throwsCode(t, 'DISPOSED', () => kv.k.toArray())
      return begun
    })
    t.deepEqual((await read).out.toArray(), wanted)
  }
  const q = tokens(1, 2)
  const own = attendAsync(q, { k: q, v: q })
  q.dispose()
  t.is((await own).out.toArray()[0], 1)
}

test.serial('a cache that is disposed of meanwhile is read to the end, and freed then', async t => {
  await collectAll()
  const start = memoryStats().usedBytes
  await disposeMeanwhile(t)
  t.true(await collected(() => memoryStats().usedBytes <= start), `${memoryStats().usedBytes - start} bytes are left`)
})

test('arrays are copied before the call returns: they may be moved away or written to', async t => {
  const [q, k, v, starts] = [Float32Array.of(1), Float32Array.of(1, 2), Float32Array.of(3, 4), Int32Array.of(1)]
  const read = attendAsync(
    { data: q, shape: [1, 1, 1, 1] },
    { k: { data: k, shape: [1, 1, 2, 1] }, v: { data: v, shape: [1, 1, 2, 1] } },
    { starts },
  )
  structuredClone([q, k, starts], { transfer: [q.buffer, k.buffer, starts.buffer] })
  v.fill(100)
  t.is((await read).out.toArray()[0], 4)
})

test('an array for the output is written at the end, if it still has its memory', async t => {
  const [q, kv] = [tokens(0, 1), { k: tokens(0, 1), v: tokens(7, 8) }]
  const out = new Float32Array(1)
  const read = attendAsync(q, kv, { returnLse: true }, out)
  t.is(out[0], 0)
  const found = await read
  t.is(found.out, out)
  t.deepEqual([out[0], found.lse.length], [7, 1])
  const gone = new Float32Array(1)
  const late = attendAsync(q, kv, {}, gone)
  structuredClone(gone, { transfer: [gone.buffer] })
  await rejects(t, 'INVALID_ARGUMENT', late)
})

test('an abort ends it: before, during, and not after', async t => {
  using cache = new KvCache(kvOptions)
  const kv = cache.update(tokens(0, 4), tokens(0, 4))
  const reason = new Error('enough')
  const before = await rejects(t, 'ABORTED', attendAsync(tokens(0, 1), kv, { signal: AbortSignal.abort(reason) }))
  t.is(before?.cause, reason)
  cache.truncate(4)
  const controller = new AbortController()
  const out = new Float32Array(1)
  const during = attendAsync(tokens(0, 1), kv, { signal: controller.signal }, out)
  controller.abort(reason)
  t.is((await rejects(t, 'ABORTED', during))?.cause, reason)
  t.is(out[0], 0)
  const later = new AbortController()
  const { out: whole } = await attendAsync(tokens(3, 4), kv, { signal: later.signal })
  later.abort()
  t.is(whole.length, 1)
  for (const signal of [{}, null, { aborted: false }, Object.create(AbortSignal.prototype)]) {
    await rejects(t, 'INVALID_ARGUMENT', attendAsync(tokens(0, 1), kv, { signal: signal as never }))
  }
})

test('work that was aborted ends before work that was begun after it', async t => {
  const controller = new AbortController()
  const order: string[] = []
  const aborted = long(60_000, { signal: controller.signal }).catch(error =>
    order.push((error as { code: string }).code),
  )
  const whole = long(4000).then(() => order.push('whole'))
  controller.abort()
  await Promise.all([aborted, whole])
  t.deepEqual(order, ['ABORTED', 'whole'])
})

test('many at once, over the same caches, while garbage is collected', async t => {
  const start = (round: number): Promise<unknown>[] => {
    const cache = new KvCache(kvOptions)
    const kv = cache.update(tokens(round, round + 4), tokens(round, round + 4))
    return span(0, 20).map(async query => {
      const options = { window: 1 + (query % 4), causal: true }
      const wanted = attend(tokens(query, query + 1), kv, options).out.toArray()
      t.deepEqual((await attendAsync(tokens(query, query + 1), kv, options)).out.toArray(), wanted)
    })
  }
  const all = span(0, 20).flatMap(start)
  await collectAll()
  await Promise.all(all)
})

const worker = `
  const rows = count => ({ data: new Float32Array(64 * count).fill(workerData), shape: [1, 1, count, 64] })
  const cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4096, headDim: 64 })
  const kv = cache.update(rows(2000), rows(2000))
`

test('workers attend in the background as well', async t => {
  const workers = [1, 2, 4].map(id =>
    startWorker(
      `${worker}
    let code
    const all = Array.from({ length: 8 }, () => kvtide.attendAsync(rows(8), kv))
    try { cache.reset() } catch (error) { code = error.code }
    const outs = await Promise.all(all)
    parentPort.postMessage([code, ...outs.map(({ out }) => out.toArray()[511])])
  `,
      id,
    ),
  )
  const answers = await Promise.all(workers.map(async running => ((await once(running, 'message')) as [unknown])[0]))
  t.deepEqual(
    answers,
    [1, 2, 4].map(id => ['BUSY', ...span(0, 8).map(() => id)]),
  )
})

test('threads and processes that end in the middle of it end as they should', async t => {
  const { code, signal, out, err } = await runProcess(`
    import { Worker } from 'node:worker_threads'
    const binding = ${JSON.stringify(addonPath)}
    const script = \`
      const addon = require(\${JSON.stringify(binding)})
      addon.setErrorClass(class extends Error {})
      const numbers = new Float64Array(72)
      const rows = new Float32Array(64 * 1500)
      for (const at of [0, 14, 28]) numbers.set([addon.dtypeNames().indexOf('f32'), 0, 0, 0, 0, 4, 1, 1, 1500, 64], at)
      const start = () => addon.attendAsync(rows, rows, rows, numbers, undefined, new addon.NativeStop())
      for (let call = 0; call < 6; call++) start().then(start).catch(() => {})
      require('node:worker_threads').parentPort.postMessage(1)
    \`
    for (let round = 0; round < 30; round++) {
      const running = new Worker(script, { eval: true, execArgv: [] })
      await new Promise(resolve => running.once('message', resolve))
      await new Promise(resolve => setTimeout(resolve, round % 5))
      await running.terminate()
    }
    const many = { data: new Float32Array(64 * 3000), shape: [1, 1, 3000, 64] }
    for (let call = 0; call < 4; call++) kvtide.attendAsync(many, { k: many, v: many }).catch(() => {})
    console.log('done')
    process.exit(0)
  `)
  t.deepEqual({ code, signal, out: out.trim() }, { code: 0, signal: null, out: 'done' }, err)
})

const filled = (count: number, of: number) => ({ data: new Float32Array(count).fill(of), shape: [1, 1, count, 1] })

test('a save that is asked for meanwhile has what is there then, whatever is appended once the cache is free', async t => {
  using cache = new PagedKvCache({ capacity: 512, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 1 })
  using sequence = cache.openSequence()
  sequence.append({ k: filled(1000, 1), v: filled(1000, 1), tokens: span(0, 1000) })
  const q = { data: new Float32Array(1), shape: [1, 1, 1] }
  for (let round = 0; round < 20; round++) {
    const length = 1000 + round
    const attending = attendAsync(q, { cache, layer: 0, sequences: [sequence] })
    throwsCode(t, 'BUSY', () => sequence.truncate(1))
    const saving = sequence.saveBytes()
    await attending
    sequence.append({ k: filled(1, 2), v: filled(1, 2), tokens: [9] })
    using loaded = await cache.loadSequence(await saving)
    t.is(loaded.length, length)
  }
})
