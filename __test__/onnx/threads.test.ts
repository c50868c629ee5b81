// Models in sessions of onnxruntime-node: on a thread of their own, which blocks no other work, loses nothing when it ends, and ends when it should.
import { Worker } from 'node:worker_threads'

import test from 'ava'

import { KvTideError, PagedKvCache, type ErrorCode } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import type { BackendName } from '../../lib/onnx/backend.js'
import { crossed, uncrossed } from '../../lib/onnx/crossed-error.js'
import { pastLayers } from '../../lib/onnx/past-layers.js'
import { plainPorts } from '../../lib/onnx/plain.js'
import { isAtLeast, onnxPackage } from '../../lib/onnx/runtime.js'
import { program, SessionWorker, sessionHost } from '../../lib/onnx/session-host.js'
import type { SessionStep } from '../../lib/onnx/sessions.js'
import { StepRun } from '../../lib/sequences/step-run.js'
import { OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { ABSENT, onnxTest } from '../support/onnx/available.js'
import { graphFile } from '../support/onnx/paged-graph.js'
import { runProcess } from '../support/packaging/child.js'
import { rejected } from '../support/throws.js'
import { startWorker } from '../support/worker.js'

const BACKENDS = ['parts', 'plain'] satisfies BackendName[]
const onnxUrl = new URL('../../onnx.ts', import.meta.url).href
const options = (backend: BackendName): OnnxModelOptions => ({ backend, threads: 1, cache: { memoryBytes: 2 ** 24 } })
const load = (backend: BackendName): Promise<OnnxModel> => OnnxModel.load(graphFile('onnx'), options(backend))
const long = Array.from({ length: 500 }, (_, place) => 3 + ((place * 7) % 300))

/** One after the other: threads are told apart by when they are made, and a turn of the event loop belongs to one of them. */
const onnxSerial: typeof onnxTest = (title, run) => onnxTest(title, run, test.serial)

/** Older versions have no thread of their own, and what is tested of one is not. */
const version = ABSENT ? '0.0.0' : onnxPackage().version
const threadTest: typeof onnxTest =
  isAtLeast(version, 22) || ABSENT
    ? onnxSerial
    : title =>
        test.serial(`SKIPPED with onnxruntime-node ${version}, which has no thread of its own: ${title}`, t => t.pass())

/** A model, and the thread that it has made. */
async function loadWithWorker(backend: BackendName): Promise<{ model: OnnxModel; worker: Worker }> {
  const made: Worker[] = []
  const add = (worker: Worker): void => void made.push(worker)
  process.on('worker', add)
  const model = await load(backend)
  process.off('worker', add)
  return { model, worker: made.find(worker => worker instanceof Worker) as Worker }
}

for (const backend of BACKENDS) {
  threadTest(`${backend}: the event loop turns while a step is computed`, async t => {
    await using model = await load(backend)
    using chat = model.open()
    let [turns, isDone] = [0, false]
    const turn = (): void => {
      turns += 1
      if (!isDone) setImmediate(turn)
    }
    setImmediate(turn)
    const [logits] = await model.run([{ sequence: chat, tokens: long }], { logits: 'all' })
    isDone = true
    t.is(logits?.length, 500 * 320)
    t.true(turns > 100, `${turns} turns`)
  })

  onnxSerial(`${backend}: what ends during a step ends with an error, and others go on`, async t => {
    const model = await load(backend)
    const [chat, other] = [model.open({ tokens: promptOf('p33') }), model.open({ salt: 'other' })]
    const running = model.run([{ sequence: other, tokens: long }])
    other.dispose()
    t.is((await rejected(running, 'DISPOSED')).code, 'DISPOSED')
    t.deepEqual(await read(model, chat, 8), greedyOf('p33').slice(0, 8))
    const last = model.run([{ sequence: chat, tokens: long }])
    const ended = model.dispose()
    const code = await last.then(
      () => undefined,
      (error: KvTideError) => error.code,
    )
    t.true(code === undefined || code === 'DISPOSED', String(code))
    await ended
    await model.dispose()

    const second = await load(backend)
    using sequence = second.open()
    const cut = second.run([{ sequence, tokens: long }])
    second.cache.dispose()
    await rejected(cut, 'DISPOSED')
    await second.dispose()
  })

  threadTest(`${backend}: its thread ends with it`, async t => {
    const { model, worker } = await loadWithWorker(backend)
    t.true(worker.threadId > 0)
    await model.dispose()
    t.is(worker.threadId, -1)
  })

  threadTest(`${backend}: where its thread is gone, a step is refused and undone`, async t => {
    const { model, worker } = await loadWithWorker(backend)
    using chat = model.open({ tokens: promptOf('p33') })
    t.deepEqual(await read(model, chat, 4), greedyOf('p33').slice(0, 4))
    const before = [...chat.tokens]
    await worker.terminate()
    const error = await rejected(model.run([{ sequence: chat, tokens: [5] }]), 'RUNTIME_FAILED')
    t.deepEqual(error.details, { reason: 'the thread of its sessions has ended: it exited' })
    await rejected(read(model, chat, 4), 'RUNTIME_FAILED')
    t.deepEqual([...chat.tokens], before)
    model.cache.checkInvariants()
    await model.dispose()
  })

  onnxSerial(`${backend}: a process ends by itself with a model that was left open`, async t => {
    const { code, signal, out, err } = await runProcess(`
      const { OnnxModel } = await import(${JSON.stringify(onnxUrl)})
      const model = await OnnxModel.load(${JSON.stringify(graphFile('onnx'))}, ${JSON.stringify(options(backend))})
      const [logits] = await model.run([{ sequence: model.open(), tokens: [1, 2, 3] }])
      console.log(logits.length)`)
    t.deepEqual([code, signal, out.trim()], [0, null, '320'], err)
  })

  for (const turns of [0, 30, 3000]) {
    onnxSerial(`${backend}: a process exits in the middle of a step, ${turns} turns behind its beginning`, async t => {
      const { code, signal, err } = await runProcess(`
        const { OnnxModel } = await import(${JSON.stringify(onnxUrl)})
        const model = await OnnxModel.load(${JSON.stringify(graphFile('onnx'))}, ${JSON.stringify(options(backend))})
        model.run([{ sequence: model.open(), tokens: Array.from({ length: 500 }, () => 7) }]).then(() => process.exit(3))
        let left = ${turns}
        const turn = () => (left-- > 0 ? setImmediate(turn) : process.exit(3))
        setImmediate(turn)`)
      t.deepEqual([code, signal], [3, null], err)
    })
  }
}

onnxSerial('three threads with a model each in every way compute the same tokens', async t => {
  const source = `
    const { OnnxModel } = await import(${JSON.stringify(onnxUrl)})
    const models = await Promise.all(workerData.all.map(options => OnnxModel.load(workerData.file, options)))
    const answers = await Promise.all(models.map(async model => {
      const tokens = []
      for await (const token of model.generate(model.open({ tokens: workerData.prompt }), { maxTokens: 24 })) tokens.push(token)
      return tokens
    }))
    for (const model of models) await model.dispose()
    parentPort.postMessage(answers)`
  const all = (['graph', ...BACKENDS] as const).map(options)
  const workers = [0, 1, 2].map(() => startWorker(source, { all, file: graphFile('onnx'), prompt: promptOf('p33') }))
  const answers = workers.map(
    worker => new Promise<unknown>((resolve, reject) => worker.once('message', resolve).once('error', reject)),
  )
  const wanted = greedyOf('p33').slice(0, 24)
  for (const answer of await Promise.all(answers)) t.deepEqual(answer, [wanted, wanted, wanted])
})

const EMPTY: SessionStep = {
  offsets: Int32Array.of(0, 1),
  ids: Uint32Array.of(1),
  positions: Int32Array.of(0),
  rows: Int32Array.of(0),
}

test.serial('a thread that ends in the middle leaves the step to its owner', async t => {
  using cache = new PagedKvCache({ capacity: 8, numLayers: 1, numKvHeads: 1, headDim: 2 })
  const lentRun = JSON.stringify(new URL('../../lib/sequences/lent-run.ts', import.meta.url).href)
  const tsx = JSON.stringify(import.meta.resolve('tsx/esm/api'))
  const ends: [string, RegExp][] = [
    [`require('node:worker_threads').parentPort.once('message', () => process.exit(3))`, /it exited/],
    [`require('node:worker_threads').parentPort.once('message', () => { throw new Error('torn') })`, /torn/],
    [
      `require('node:worker_threads').parentPort.once('message', async ({ run }) => {
      (await import(${tsx})).register()
      globalThis.kept = (await import(${lentRun})).LentRun.taken(run)
      process.exit(3)
    })`,
      /it exited/,
    ],
    [`throw new Error('not even begun')`, /not even begun/],
  ]
  for (const [text, reason] of ends) {
    const host = new SessionWorker(text)
    using step = cache.beginStep({ sequences: [cache.openSequence()] })
    using run = StepRun.of(step)
    const number = run.share()
    const { details } = await rejected(host.compute(number, EMPTY), 'RUNTIME_FAILED')
    t.regex(details.reason, reason)
    binding.unshare(number)
    run.end()
    t.throws(() => step.commit(), { code: 'STEP_INCOMPLETE' })
    step.rollback()
    await rejected(host.compute(number, EMPTY), 'RUNTIME_FAILED')
    await host.end()
    await host.end()
    cache.checkInvariants()
  }
})

onnxSerial('before 1.22 sessions are on the thread that asks, with the same answers', async t => {
  const native = await binding.NativeOnnxGraph.open(graphFile('onnx'))
  using cache = new PagedKvCache({ model: { layers: pastLayers(plainPorts(native), {}) }, capacity: 40, blockSize: 4 })
  const { groups, dtype, keyFormat, valueFormat } = cache
  let threads = 0
  const add = (): void => void (threads += 1)
  process.on('worker', add)
  t.teardown(() => process.off('worker', add))
  const runtime = { version: '1.21.0', folder: onnxPackage().folder }
  const host = await sessionHost({
    kind: 'plain',
    graph: native.share(),
    cache: { groups, dtype, keyFormat, valueFormat },
    threads: 1,
    takesFolder: false,
    runtime,
  })
  const tokens = promptOf('p7')
  const sequence = cache.openSequence()
  using step = cache.beginStep({ sequences: [sequence], offsets: [0, 7] })
  using run = StepRun.of(step)
  await host.compute(run.share(), {
    offsets: Int32Array.of(0, 7),
    ids: Uint32Array.from(tokens),
    positions: Int32Array.from(tokens.keys()),
    rows: Int32Array.of(6),
    pasts: { sequences: [{ length: 0, from: undefined, keep: 1 }], forget: [] },
  })
  run.end()
  step.commit()
  const logits = run.logits().row(0)
  t.is(logits.indexOf(Math.max(...logits)), greedyOf('p7')[0] as number)
  t.is(threads, 0)
  await host.end()
  await host.end()
})

test.serial('errors are the same on the other thread', t => {
  const cause = new Error('what was behind it')
  const error = new KvTideError('RUNTIME_FAILED', 'it failed', { reason: 'so', node: 'there' }, { cause })
  const same = uncrossed(structuredClone(crossed(error)))
  t.true(same instanceof KvTideError)
  t.deepEqual(
    [same.code, same.message, same.details, (same.cause as Error).message],
    [error.code, error.message, error.details, cause.message],
  )
  const wrong = new KvTideError('INVALID_ARGUMENT', 'wrong', { argument: 'a', value: () => 1, expected: 'b' })
  t.is(uncrossed(structuredClone(crossed(wrong))).code, 'INVALID_ARGUMENT')
  for (const other of [new TypeError('of nobody'), 'thrown', undefined])
    t.is(uncrossed(structuredClone(crossed(other))).code, 'INTERNAL' satisfies ErrorCode)
})

/** As in Deno, a port has no `close`, and drops what comes before the program listens. */
const DENO = `{
  const { parentPort } = require('node:worker_threads')
  parentPort.close = undefined
  parentPort.on('message', () => {})
}`

threadTest('a port that drops what comes too early, and cannot be closed, will do', async t => {
  const exits: Promise<number>[] = []
  const add = (worker: Worker): void => void exits.push(new Promise(resolve => void worker.once('exit', resolve)))
  process.on('worker', add)
  const host = new SessionWorker(DENO + program())
  await t.notThrowsAsync(host.ask({ end: true }))
  process.off('worker', add)
  await host.end()
  t.deepEqual(await Promise.all(exits), [0])
})
