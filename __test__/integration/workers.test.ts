// Worker threads: one binding for all threads, objects that belong to the thread that made them, and threads that end at any time.
import { once } from 'node:events'
import type { Worker } from 'node:worker_threads'

import test from 'ava'

import * as kvtide from '../../index.js'
import { runProcess } from '../support/packaging/child.js'
import { addonPath } from '../support/packaging/package-copy.js'
import { throwsCode } from '../support/throws.js'
import { tokens } from '../support/tokens.js'
import { startWorker as start } from '../support/worker.js'

const work = `
  const cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 1000, headDim: 2 })
  for (let token = 0; token < 1000; token++) {
    const row = kvtide.Tensor.from(new Float32Array([token, workerData]), [1, 1, 1, 2])
    cache.update(row, row)
    row.dispose()
  }
  const k = cache.getKv().k.toArray()
  let code = 'nothing'
  try { cache.truncate(-1) } catch (error) { code = error instanceof kvtide.KvTideError ? error.code : String(error) }
  parentPort.postMessage({ first: k[0], last: k[1998], mine: k[1999], code })
`

test('the package works in several workers at once', async t => {
  const workers = [1, 2, 3, 4].map(id => start(work, id))
  const answers = await Promise.all(
    workers.map(async worker => {
      // A worker's last message may arrive together with its end.
      const exited = once(worker, 'exit') as Promise<[number]>
      const [answer] = (await once(worker, 'message')) as [unknown]
      const [code] = await exited
      t.is(code, 0)
      return answer
    }),
  )
  t.deepEqual(
    answers,
    [1, 2, 3, 4].map(mine => ({ first: 0, last: 999, mine, code: 'INVALID_ARGUMENT' })),
  )
})

test('a worker counts under the limit of the process, and gives back what it had', async t => {
  const before = kvtide.memoryStats().usedBytes
  const worker = start(`
    globalThis.kept = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1024, maxSeqLen: 1024, headDim: 1024 })
    parentPort.once('message', () => {})
    parentPort.postMessage(kvtide.memoryStats().usedBytes)
  `)
  const [inside] = (await once(worker, 'message')) as [number]
  t.true(inside >= 8 * 2 ** 20)
  t.true(kvtide.memoryStats().usedBytes - before >= 8 * 2 ** 20, 'seen from here')
  await worker.terminate()
  t.true(kvtide.memoryStats().usedBytes - before < 2 ** 20, 'and gone with the thread')
})

test('terminating a worker in the middle of its work does not harm the process', async t => {
  const source = `
    parentPort.postMessage('ready')
    for (;;) {
      ${work.replaceAll('const ', 'var ')}
      try { new kvtide.KvCache({}) } catch {}
    }`
  for (let round = 0; round < 8; round++) {
    const worker = start(source, round)
    await once(worker, 'message')
    await new Promise(resolve => setTimeout(resolve, 3 * round))
    t.is(await worker.terminate(), 1)
  }
  using cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4, headDim: 1 })
  cache.update(tokens(0, 3), tokens(0, 3))
  t.is(cache.seqLen, 3)
})

test('results that were under way when a worker ended are gone with it', async t => {
  const read = await runProcess(`
    const { startWorker } = await import(${JSON.stringify(new URL('../support/worker.ts', import.meta.url).href)})
    const source = \`
      const tensor = kvtide.Tensor.from(new Float32Array(2 ** 21), [2 ** 21])
      for (let call = 0; call < 4; call++) (call % 2 === 0 ? tensor.toArrayAsync() : tensor.toFloat32ArrayAsync()).catch(() => {})
      parentPort.postMessage('begun')
      for (;;) {}
    \`
    const rounds = async count => {
      for (let round = 0; round < count; round++) {
        const worker = startWorker(source)
        await new Promise(resolve => worker.once('message', resolve))
        await worker.terminate()
      }
      return process.memoryUsage().rss
    }
    const before = await rounds(3)
    const after = await rounds(10)
    console.log(Math.round((after - before) / 2 ** 20), kvtide.memoryStats().usedBytes)
    process.exit(0)
  `)
  t.is(read.err, '')
  const [grown, usedBytes] = read.out.trim().split(' ').map(Number) as [number, number]
  // Ten workers had 320 MiB allocated.
  t.true(grown < 100, `${grown} MiB more`)
  t.is(usedBytes, 0)
})

test('an object that is posted arrives empty, and is refused', t => {
  using cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4, headDim: 1 })
  using tensor = tokens(0, 1)
  using rotating = new kvtide.RotatingCache({ dim: 2, maxSeqLen: 4 })
  using rollback = new kvtide.RollbackCache()
  const posted = (object: object): object => {
    try {
      return structuredClone(object)
    } catch (error) {
      t.is((error as Error).name, 'DataCloneError')
      return {}
    }
  }
  for (const call of [
    () => cache.restore(posted(cache.snapshot()) as never),
    () => cache.update(posted(tensor) as never, tensor),
    () => rotating.restore(posted(rotating.snapshot()) as never),
    () => rollback.rollback(posted(rollback.snapshot()) as never),
    () => kvtide.KvCache.prototype.getKv.call(posted(cache) as never),
    () => tensor.equals(posted(tensor) as never),
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', call)
  }
})

test('an object that reaches a worker is refused there', async t => {
  using cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4, headDim: 1 })
  const source = `
    const codes = [
      () => kvtide.KvCache.prototype.update.call(workerData.cache),
      () => workerData.cache.update(),
      () => kvtide.Tensor.prototype.toArray.call(workerData.tensor),
      () => new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4, headDim: 1 }).restore(workerData.snapshot),
    ].map(call => { try { call() } catch (error) { return error.code ?? error.constructor.name } })
    parentPort.postMessage(codes)`
  let worker: Worker
  try {
    worker = start(source, { cache, tensor: tokens(0, 1), snapshot: cache.snapshot() })
  } catch (error) {
    t.is((error as Error).name, 'DataCloneError')
    return
  }
  const [codes] = (await once(worker, 'message')) as [string[]]
  t.deepEqual(codes, ['INVALID_ARGUMENT', 'TypeError', 'INVALID_ARGUMENT', 'INVALID_ARGUMENT'])
  await worker.terminate()
})

test('two hundred rounds of errors and threads end as they should', async t => {
  const { code, signal, out, err } = await runProcess(`
    import { Worker } from 'node:worker_threads'
    import { createRequire } from 'node:module'
    const addon = ${JSON.stringify(addonPath)}
    const { KvCache, Tensor, KvTideError } = kvtide
    const script = \`const addon = require(\${JSON.stringify(addon)}); addon.setErrorClass(class extends Error {}); try { addon.deviceName('x') } catch {} require('node:worker_threads').parentPort.postMessage(1)\`
    let refused = 0
    for (let round = 0; round < 200; round++) {
      const worker = new Worker(script, { eval: true, execArgv: [] })
      for (const call of [() => new KvCache({}), () => Tensor.from(new Float32Array(1), [2]), () => Tensor.from(new Float32Array(1), [1]).narrow(3, 0, 0)]) {
        try { call() } catch (error) { if (error instanceof KvTideError) refused += 1 }
      }
      if (round % 2 === 0) await new Promise(resolve => worker.once('exit', resolve))
      else await worker.terminate()
    }
    console.log(refused)
  `)
  t.deepEqual({ code, signal, out: out.trim() }, { code: 0, signal: null, out: '600' }, err)
})
