// Several worker threads that load the addon at once, work in the foreground and the background, and are terminated at random moments. The process
// and its other threads go on, and all memory of the workers is given back.
import { once } from 'node:events'

import test from 'ava'

import * as kvtide from '../../index.js'
import { tokens } from '../support/tokens.js'
import { until } from '../support/until.js'
import { startWorker } from '../support/worker.js'

const rounds = Number(process.env['KVTIDE_WORKER_ROUNDS'] ?? 6)
const WORKERS = 4

/** Each turn begins calls in the background, and changes, disposes of or abandons the caches that they read. */
const work = `
  let state = workerData
  const below = end => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * end)
  }
  const rows = count => kvtide.Tensor.from(new Float32Array(count * 64).fill(below(100)), [1, 2, count, 32])
  parentPort.postMessage('ready')
  const quiet = promise => promise.catch(() => {})
  for (;;) {
    const cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 16, maxSeqLen: 4096, headDim: 32 })
    const row = rows(1 + below(500))
    cache.update(row, row)
    const q = rows(1)
    quiet(kvtide.attendAsync(q, cache.getKv()))
    quiet(cache.getKv().k.toArrayAsync())
    if (below(2) === 0) try { cache.update(rows(3), rows(3)) } catch {}
    if (below(3) === 0) cache.dispose()
    if (below(3) === 0) row.dispose()
    if (below(2) === 0) await new Promise(resolve => setImmediate(resolve))
  }`

test('workers that end at any moment give back what they had', async t => {
  let state = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
  t.log(`KVTIDE_SEED=${state} KVTIDE_WORKER_ROUNDS=${rounds}`)
  const below = (end: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * end)
  }
  using cache = new kvtide.KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4096, headDim: 1 })
  const before = kvtide.memoryStats().usedBytes
  for (let round = 0; round < rounds; round++) {
    const workers = Array.from({ length: WORKERS }, () => startWorker(work, below(2 ** 31)))
    const failures: unknown[] = []
    for (const worker of workers) worker.on('error', error => failures.push(error))
    await Promise.all(
      workers.map(async worker => {
        // One in four ends while it loads the addon.
        const works = below(4) > 0
        if (works) await once(worker, 'message')
        await new Promise(resolve => setTimeout(resolve, below(120)))
        const code = await worker.terminate()
        t.true(code === 1 || (code === 0 && !works), `exit code ${code}`)
      }),
    )
    t.deepEqual(failures, [])
    cache.update(tokens(round, round + 1), tokens(round, round + 1))
    t.is(cache.seqLen, round + 1)
  }
  // Calls in the background end on threads of their own.
  t.true(
    await until(() => kvtide.memoryStats().usedBytes - before < 2 ** 20),
    `${kvtide.memoryStats().usedBytes} bytes`,
  )
})
