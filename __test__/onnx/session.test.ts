// One graph in onnxruntime, attention on pages: what it computes, and what is left when it fails.
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import type { ExecutionContext } from 'ava'

import type { NativeLogits } from '#binding'

import { binding } from '../../lib/loading/binding.js'
import { onnxLibrary } from '../../lib/onnx/runtime.js'
import { StepRun } from '../../lib/sequences/step-run.js'
import { distance, referenceLogits, references } from '../support/llama/references.js'
import { readSafetensors } from '../support/llama/safetensors.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { runProcess } from '../support/packaging/child.js'
import { best, F16, F32, graphFile, INT4, PagedGraph } from '../support/onnx/paged-graph.js'
import { rejected } from '../support/throws.js'

const prompts = Object.keys(references.prompts)
const promptOf = (name: string): readonly number[] => references.prompts[name] as readonly number[]
const greedyOf = (name: string): readonly number[] => references.greedy[name] as readonly number[]

/** A graph on pages; nothing where an older onnxruntime does not know the version of the graph or of its operators, which is said by name. */
async function opened(
  t: ExecutionContext,
  file: string,
  options: Parameters<typeof PagedGraph.open>[1] = {},
): Promise<PagedGraph | undefined> {
  try {
    return await PagedGraph.open(file, options)
  } catch (error) {
    const version = process.env['KVTIDE_ONNXRUNTIME_VERSION']
    if (version === undefined || !/IR version|[Oo]pset|Unrecognized attribute/.test(String(error))) throw error
    t.log(`SKIPPED: onnxruntime ${version} does not read ${file}`)
    t.pass()
    return undefined
  }
}

for (const name of [...F32, F16]) {
  const close = name === F16 ? 0.1 : 1e-4
  test(`${name}: logits of all prompts are the references'`, async t => {
    using model = await opened(t, graphFile(name))
    if (model === undefined) return
    for (const prompt of prompts) {
      using sequence = model.cache.openSequence()
      const off = distance(await model.all(sequence, promptOf(prompt)), referenceLogits(`logits.${prompt}`))
      t.true(off < close, `${prompt} is off by ${off}`)
    }
  })

  test(`${name}: 64 tokens after each prompt are the references'`, async t => {
    using model = await opened(t, graphFile(name))
    if (model === undefined) return
    for (const prompt of prompts) {
      using sequence = model.cache.openSequence()
      t.deepEqual(await model.greedy(sequence, promptOf(prompt), 64), greedyOf(prompt), prompt)
    }
  })
}

for (const names of [
  ['model.onnx', 'model.onnx.data'],
  ['1f3a', '9bc2'],
] as const) {
  test(`links to files that are called ${names.join(' and ')}`, async t => {
    if (process.platform === 'win32') {
      t.log('SKIPPED: links of files need rights on Windows')
      return t.pass()
    }
    const folder = mkdtempSync(join(tmpdir(), 'kvtide-links-'))
    t.teardown(() => rmSync(folder, { recursive: true }))
    const [blobs, shown] = ['blobs', 'shown'].map(name => join(folder, name)) as [string, string]
    for (const made of [blobs, shown]) mkdirSync(made)
    for (const [at, name] of ['model.onnx', 'model.onnx.data'].entries()) {
      copyFileSync(graphFile('onnx-gqa-f32-ext').replace('model.onnx', name), join(blobs, names[at] as string))
      symlinkSync(join(blobs, names[at] as string), join(shown, name))
    }
    using model = await opened(t, join(shown, 'model.onnx'))
    if (model === undefined) return undefined
    using sequence = model.cache.openSequence()
    return t.true(distance(await model.all(sequence, promptOf('p7')), referenceLogits('logits.p7')) < 1e-4)
  })
}

test('int4: the tokens are its own', async t => {
  const check = JSON.parse(readFileSync(graphFile(INT4).replace('model.onnx', 'check.json'), 'utf8')) as {
    readonly 'python_ort_1.30.0': { readonly own_greedy: Record<string, number[]> }
  }
  using model = await opened(t, graphFile(INT4))
  if (model === undefined) return
  let [same, of] = [0, 0]
  for (const [prompt, tokens] of Object.entries(check['python_ort_1.30.0'].own_greedy)) {
    using sequence = model.cache.openSequence()
    let given = promptOf(prompt)
    for (const token of tokens) {
      const row = (await model.step([{ sequence, tokens: given }], [given.length - 1])).row(0)
      same += best(row) === token ? 1 : 0
      of++
      given = [token]
    }
  }
  // Its products round activations to 8 bits, each version of onnxruntime in its own way: the last bit may turn a token that is nearly two.
  t.true(of === 320 && same >= 310, `${same} of ${of}`)
})

for (const [family, close] of [
  ['qwen2-window/optimum', 1e-4],
  ['qwen2-window/builder', 1e-4],
  ['gemma2/builder', 5e-3],
  ['gpt-oss/builder', 0.15],
  ['llama/dynamo', 1e-4],
  ['llama/builder-f16', 0.1],
] as const) {
  test(`${family}: windows, soft caps, sink logits and half floats`, async t => {
    const folder = new URL(`../fixtures/families/${family.split('/')[0]}/`, import.meta.url)
    const { prompts: own } = JSON.parse(readFileSync(new URL('references.json', folder), 'utf8')) as {
      readonly prompts: Record<string, number[]>
    }
    const wanted = readSafetensors(new URL('references.safetensors', folder))
    using model = await opened(t, fileURLToPath(new URL(`../fixtures/families/${family}/model.onnx`, import.meta.url)))
    if (model === undefined) return
    for (const [prompt, tokens] of Object.entries(own)) {
      const logits = wanted.get(`logits.${prompt}`)?.data
      t.truthy(logits)
      using whole = model.cache.openSequence()
      const off = distance(await model.all(whole, tokens), logits as Float32Array)
      t.true(off < close, `${prompt} is off by ${off}`)
      using pieces = model.cache.openSequence()
      const vocab = (logits as Float32Array).length / tokens.length
      for (let at = 0; at < tokens.length; at += 5) {
        const found = await model.all(pieces, tokens.slice(at, at + 5))
        const apart = distance(found, (logits as Float32Array).subarray(at * vocab, at * vocab + found.length))
        t.true(apart < close, `${prompt} at ${at} is off by ${apart}`)
      }
    }
  })
}

for (const [graph, rows] of [
  ['onnx', true],
  ['onnx-gqa-f32', false],
] as const) {
  test(`four prompts in one ragged step, then decoding beside a prompt in pieces; rows chosen ${rows ? 'in the graph' : 'afterwards'}`, async t => {
    using model = await opened(t, graphFile(graph), { rows })
    if (model === undefined) return
    const names = ['p1', 'p7', 'p33', 'p100']
    const sequences = names.map(() => model.cache.openSequence())
    const batch = names.map((name, at) => ({
      sequence: sequences[at] as (typeof sequences)[0],
      tokens: promptOf(name),
    }))
    const ends = batch.map((_, at) => batch.slice(0, at + 1).reduce((sum, entry) => sum + entry.tokens.length, 0) - 1)
    const logits = await model.step(batch, ends)
    t.is(logits.rows(), 4)
    for (const [at, name] of names.entries()) {
      const off = distance(logits.row(at), referenceLogits(`greedy_logits.${name}`).subarray(0, logits.vocab()))
      t.true(off < 1e-4, `${name} is off by ${off}`)
    }
    const late = model.cache.openSequence()
    const rest = [...promptOf('branch60')]
    for (let place = 0; rest.length > 0; place++) {
      const piece = rest.splice(0, 13)
      const decoded = names.map((name, at) => ({
        sequence: sequences[at] as (typeof sequences)[0],
        tokens: [greedyOf(name)[place] as number],
      }))
      const mixed = await model.step([...decoded, { sequence: late, tokens: piece }], [0, 1, 2, 3, 3 + piece.length])
      for (const [at, name] of names.entries()) {
        const vocab = mixed.vocab()
        const off = distance(
          mixed.row(at),
          referenceLogits(`greedy_logits.${name}`).subarray((place + 1) * vocab, (place + 2) * vocab),
        )
        t.true(off < 1e-4, `${name}, token ${place} is off by ${off}`)
      }
      if (rest.length === 0)
        t.true(distance(mixed.row(4), referenceLogits('greedy_logits.branch60').subarray(0, mixed.vocab())) < 1e-4)
    }
  })
}

test('forks, truncations and prefixes go on as if they had been computed alone', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  using first = model.cache.openSequence()
  await model.all(first, promptOf('p100'))
  using fork = first.fork()
  fork.truncate(60)
  t.deepEqual(await model.greedy(fork, promptOf('branch60').slice(60), 64), greedyOf('branch60'))
  t.deepEqual(await model.greedy(first, [greedyOf('p100')[0] as number], 63), greedyOf('p100').slice(1))
  using prefix = model.cache.match(promptOf('p100'))
  t.is(prefix.length, 96)
  using found = model.cache.openSequence({ prefix })
  t.deepEqual(await model.greedy(found, promptOf('p100').slice(96), 8), greedyOf('p100').slice(0, 8))
})

/** Logits of two tokens after a prompt, on so many threads. */
async function after100(threads: number): Promise<Float32Array> {
  using model = await PagedGraph.open(graphFile('onnx'), { threads })
  using sequence = model.cache.openSequence()
  await model.all(sequence, promptOf('p100'))
  return await model.all(sequence, greedyOf('p100').slice(0, 2))
}

for (const threads of [2, 3]) {
  test(`${threads} threads give the same bits as one`, async t => {
    t.deepEqual(await after100(threads), await after100(1))
  })
}

test('low-bit pages under the operator', async t => {
  using model = await PagedGraph.open(graphFile('onnx'), { cache: { keyFormat: 'q8', valueFormat: 'q8' } })
  using sequence = model.cache.openSequence()
  const off = distance(await model.all(sequence, promptOf('p100')), referenceLogits('logits.p100'))
  t.true(off > 1e-4 && off < 1, `off by ${off}`)
})

test('a token outside of the vocabulary fails by the node, the step is undone, and the session goes on', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  using sequence = model.cache.openSequence()
  await model.all(sequence, promptOf('p7'))
  const error = await rejected(model.step([{ sequence, tokens: [100_000] }]), 'RUNTIME_FAILED')
  t.regex(error.details.node ?? '', /embed/)
  t.regex(error.details.reason, /out of/)
  t.is(sequence.length, 7)
  t.deepEqual(await model.greedy(sequence, [greedyOf('p7')[0] as number], 63), greedyOf('p7').slice(1))
})

test('what a kernel is refused with is the error of the call: pages of another head dimension', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  using other = await PagedGraph.open(graphFile('onnx'), {
    cache: {
      model: { layers: Array.from({ length: 3 }, () => ({ kind: 'full', numKvHeads: 2, headDim: 8 })) },
    } as never,
  })
  using sequence = other.cache.openSequence()
  using step = other.cache.beginStep({ sequences: [sequence], offsets: [0, 2] })
  using run = StepRun.of(step)
  const error = await rejected(
    model.session.run(run.native, Uint32Array.of(3, 4), Int32Array.of(0, 1)),
    'SHAPE_MISMATCH',
  )
  t.is(error.details.argument, 'k')
  run.dispose()
  step.rollback()
  t.is(sequence.length, 0)
  using own = model.cache.openSequence()
  t.deepEqual(await model.greedy(own, promptOf('p7'), 8), greedyOf('p7').slice(0, 8))
})

test('a layer that fails in the middle of a step leaves nothing behind', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  const layers = [0, 1].map(() => ({ kind: 'full' as const, numKvHeads: 2, headDim: 16 }))
  using short = await PagedGraph.open(graphFile('onnx'), { cache: { model: { layers } } as never })
  using sequence = short.cache.openSequence()
  using step = short.cache.beginStep({ sequences: [sequence], offsets: [0, 1] })
  using run = StepRun.of(step)
  // The first two layers are written, the third one is not there.
  const error = await rejected(model.session.run(run.native, Uint32Array.of(3), Int32Array.of(0)), 'INVALID_ARGUMENT')
  t.is(error.details.argument, 'layer')
  run.dispose()
  t.throws(() => step.commit(), { code: 'STEP_INCOMPLETE' })
  step.rollback()
  t.is(short.cache.stats().activeBlocks, 0)
})

test('arguments are refused before anything is computed', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  using sequence = model.cache.openSequence()
  using step = model.cache.beginStep({ sequences: [sequence], offsets: [0, 2] })
  using run = StepRun.of(step)
  const call = (ids: number[], positions: number[], rows?: number[]): Promise<unknown> =>
    model.session.run(run.native, Uint32Array.from(ids), Int32Array.from(positions), rows && Int32Array.from(rows))
  t.throws(() => call([3], [0]), { code: 'INVALID_ARGUMENT', message: /1 token ids, expected 2/ })
  t.throws(() => call([3, 4], [0]), { code: 'INVALID_ARGUMENT', message: /positions/ })
  t.throws(() => call([3, 4], [0, 1], [2]), { code: 'INVALID_ARGUMENT', message: /rows is 2/ })
  const computing = call([3, 4], [0, 1], [1])
  t.throws(() => call([3, 4], [0, 1]), { code: 'BUSY' })
  await computing
  run.end()
  step.commit()
  t.is(sequence.length, 2)
})

test('a session computes one step at a time, and the step that was refused is computed later', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  using other = await PagedGraph.open(graphFile('onnx'))
  using sequence = model.cache.openSequence()
  using elsewhere = other.cache.openSequence()
  const computing = model.step([{ sequence, tokens: promptOf('p100') }])
  using step = other.cache.beginStep({ sequences: [elsewhere], offsets: [0, 2] })
  using run = StepRun.of(step)
  const call = (): Promise<NativeLogits> =>
    model.session.run(run.native, Uint32Array.of(3, 4), Int32Array.of(0, 1), Int32Array.of(1))
  t.throws(call, { code: 'BUSY' })
  t.is((await computing).rows(), 100)
  const late = (await call()).row(0)
  run.end()
  step.commit()
  using alone = other.cache.openSequence()
  t.deepEqual(late, (await other.all(alone, [3, 4])).slice(-late.length))
})

test('a session that is disposed of finishes its step, and refuses the next one', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  using sequence = model.cache.openSequence()
  const computing = model.step([{ sequence, tokens: promptOf('p100') }])
  model.session.dispose()
  t.is((await computing).rows(), 100)
  await rejected(model.step([{ sequence, tokens: [3] }]), 'DISPOSED')
})

test('a cache that is disposed of while a step is computed keeps its memory until that is done', async t => {
  using model = await PagedGraph.open(graphFile('onnx'))
  const sequence = model.cache.openSequence()
  const computing = model.step([{ sequence, tokens: promptOf('p100') }])
  model.cache.dispose()
  const error = await rejected(computing, 'DISPOSED')
  t.is(error.details.object, 'PagedKvCache')
})

test('a library that is not loaded, and a model that the library refuses', async t => {
  const options = { threads: 1 }
  const { NativeOnnxSession, NativeOnnxGraph } = binding
  const missing = await rejected(
    NativeOnnxSession.create('/nowhere/libonnxruntime.so', graphFile('onnx'), options),
    'RUNTIME_UNAVAILABLE',
  )
  t.regex(missing.details.reason, /not loaded/)
  const { file } = onnxLibrary()
  const refused = await rejected(NativeOnnxSession.create(file, new Uint8Array([1, 2, 3]), options), 'RUNTIME_FAILED')
  t.not(refused.details.reason, '')
  t.throws(() => NativeOnnxSession.create(file, new Uint8Array(), { threads: 0 }), { code: 'INVALID_ARGUMENT' })
  // With its pasts still there, the graph could not be fed.
  const past = await rejected(NativeOnnxSession.create(file, graphFile('onnx'), options), 'UNSUPPORTED_GRAPH')
  t.regex(past.details.node, /past_key_values|attention_mask/)
  const graph = await NativeOnnxGraph.open(graphFile('onnx'))
  const bytes = await (await graph.rewrite(true)).model()
  const session = await NativeOnnxSession.create(file, bytes, options)
  t.deepEqual(session.outputs, ['logits'])
  session.dispose()
})

test('the first sessions of a process may be made at once', async t => {
  // A graph of one node, logits = Identity(input_ids): made so fast that all of them come to the library's list of domains together.
  const identity =
    'CAhCBAoAEA86UwodCglpbnB1dF9pZHMSBmxvZ2l0cyIISWRlbnRpdHkSAWdaGAoJaW5wdXRfaWRzEgsKCQgHEgUKAxIBbmIVCgZsb2dpdHMSCwoJCAcSBQoDEgFu'
  const { href: lib } = new URL('../../lib/', import.meta.url)
  for (let turn = 0; turn < 20; turn++) {
    const { code, out, err } = await runProcess(`
      process.env.UV_THREADPOOL_SIZE = '16'
      const { binding } = await import('${lib}loading/binding.ts')
      const { onnxLibrary } = await import('${lib}onnx/runtime.ts')
      const { file } = onnxLibrary()
      const model = new Uint8Array(Buffer.from(${JSON.stringify(identity)}, 'base64'))
      const made = await Promise.all(Array.from({ length: 16 }, () => binding.NativeOnnxSession.create(file, model, { threads: 1 })))
      console.log(made.length)`)
    t.deepEqual([code, out.trim()], [0, '16'], err)
  }
})
