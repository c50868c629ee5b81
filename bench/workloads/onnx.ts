// A decoder in onnxruntime-node, with its past going in and out, against the same decoder in kvtide/onnx.
//
// onnxruntime-node has two ways: past in and present out, a copy of everything at each step; and one buffer for both, which holds
// whatever length there may be from the start. The better one of each round is the peer.
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

import { OnnxModel, type OnnxSequence } from 'kvtide/onnx'
import * as onnxruntime from 'onnxruntime-node'

import { workloadOf, type Ratio, type Skipped, type Workload } from '../report/report.js'
import { REPORTS } from '../run/suites.js'
import { lane, measure, pause, type Contestant } from '../run/rounds.js'
import { DECODER, writeDecoder } from './decoder.js'
import { writeGguf } from './gguf.js'

const { layers, kvHeads, headDim, vocabulary } = DECODER
const { InferenceSession, Tensor } = onnxruntime

type Feeds = Record<string, onnxruntime.Tensor>

const int64 = (values: readonly number[], dims: readonly number[]): onnxruntime.Tensor => new Tensor('int64', BigInt64Array.from(values, BigInt), dims)

const ones = (rows: number, length: number): onnxruntime.Tensor => new Tensor('int64', new BigInt64Array(rows * length).fill(1n), [rows, length])

/** Token ids that are the same in each run; another seed gives others. */
export function ids(count: number, seed: number): Uint32Array {
  let state = seed * 2_654_435_761 + 1
  return Uint32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return 3 + (state % (vocabulary - 3))
  })
}

function noise(count: number): Float32Array {
  let state = 0x2545f491
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32 - 0.5
  })
}

const names = (side: 'past_key_values' | 'present'): string[] => Array.from({ length: layers }, (_, layer) => ['key', 'value'].map(part => `${side}.${layer}.${part}`)).flat()

/** Frees what a lane has left at once, so that the next one does not pay for it. */
function collect(): void {
  setFlagsFromString('--expose-gc')
  ;(runInNewContext('gc') as () => void)()
}

/** Tokens of a round, one after the other: the first of them finds its weights where another lane has left the processor's caches. */
const STEPS = 8

/** A way to compute some tokens behind a past of one length: `reset` goes back to it. */
interface Decoding {
  readonly reset: () => void
  readonly step: () => Promise<void>
}

/** A lane whose rounds are a few tokens each. Before each of them other lanes' threads get time to stop looking for work. */
function decoding(role: 'peer' | 'ours', name: string, { reset, step }: Decoding, after?: () => void): Contestant {
  const before = (): void => {
    reset()
    pause()
  }
  const round = async (): Promise<void> => {
    for (let done = 0; done < STEPS; done++) await step()
  }
  return lane(role, name, STEPS, round, { shared: true, before, ...(after !== undefined && { after }) })
}

/** Past in and present out. */
function copying(session: onnxruntime.InferenceSession, length: number, rows: number): Decoding {
  const data = noise(rows * kvHeads * length * headDim)
  const first = names('past_key_values').map(() => new Tensor('float32', data, [rows, kvHeads, length, headDim]) as onnxruntime.Tensor)
  let [past, total] = [first, length]
  return {
    reset: () => void ([past, total] = [first, length]),
    step: async () => {
      total += 1
      const feeds: Feeds = { input_ids: int64(Array.from({ length: rows }, () => 5), [rows, 1]), attention_mask: ones(rows, total) }
      names('past_key_values').forEach((name, index) => (feeds[name] = past[index] as onnxruntime.Tensor))
      const outputs = await session.run(feeds)
      past = names('present').map(name => outputs[name] as onnxruntime.Tensor)
    },
  }
}

/** One buffer that is past and present, with room for the tokens of a round. */
function sharing(session: onnxruntime.InferenceSession, length: number, rows: number): Decoding {
  const room = length + STEPS
  const held = names('past_key_values').map(() => new Tensor('float32', noise(rows * kvHeads * room * headDim), [rows, kvHeads, room, headDim]))
  const fetches: Record<string, onnxruntime.Tensor> = { logits: new Tensor('float32', new Float32Array(rows * vocabulary), [rows, 1, vocabulary]) }
  names('present').forEach((name, index) => (fetches[name] = held[index] as onnxruntime.Tensor))
  let total = length
  return {
    reset: () => void (total = length),
    step: async () => {
      total += 1
      const feeds: Feeds = { input_ids: int64(Array.from({ length: rows }, () => 5), [rows, 1]), attention_mask: ones(rows, total) }
      names('past_key_values').forEach((name, index) => (feeds[name] = held[index] as onnxruntime.Tensor))
      await session.run(feeds, fetches)
    },
  }
}

const sessionOf = (path: string, threads: number): Promise<onnxruntime.InferenceSession> =>
  InferenceSession.create(path, { intraOpNumThreads: threads, interOpNumThreads: 1, executionMode: 'sequential', graphOptimizationLevel: 'all', logSeverityLevel: 3 })

const BACKENDS = ['graph', 'parts'] as const

interface Running {
  readonly path: string
  readonly threads: number
  readonly models: Readonly<Record<string, OnnxModel>>
  readonly session: onnxruntime.InferenceSession
}

/** The decoder in all ways, at so many threads. */
async function start(threads: number, memoryBytes: number): Promise<Running> {
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const models: Record<string, OnnxModel> = {}
  for (const backend of BACKENDS) models[backend] = await OnnxModel.load(path, { backend, threads, cache: { memoryBytes, maxSequences: 32 } })
  return { path, threads, models, session: await sessionOf(path, threads) }
}

async function end({ models, session }: Running): Promise<void> {
  for (const model of Object.values(models)) await model.dispose()
  await session.release()
}

/** Rounds of seconds, of which the first warms up. */
const measureLong = (lanes: readonly Contestant[], rounds: number): ReturnType<typeof measure> => measure(lanes, rounds, undefined, 1)

const many = (threads: number): string => (threads === 1 ? '1 thread' : `${threads} threads`)

/** Sequences of so many tokens each, computed. */
async function filled(model: OnnxModel, length: number, rows: number): Promise<OnnxSequence[]> {
  const sequences = Array.from({ length: rows }, (_, row) => model.open({ tokens: ids(length, row + 1), salt: `row ${row}` }))
  for (const sequence of sequences) await model.run([{ sequence }])
  return sequences
}

/** A step of one token for each of some sequences of a length. */
export async function decode(length: number, rows: number, threads: number, rounds: number, targets: { readonly peer: number; readonly parts?: number }): Promise<Workload> {
  const id = `js-onnx-${rows === 1 ? '' : `${rows}x`}${length}-${threads}`
  const running = await start(threads, rows * (length + 600) * 2 * layers * kvHeads * headDim * 4)
  const opened: OnnxSequence[] = []
  const lanes = [decoding('peer', 'onnxruntime-node, one buffer', sharing(running.session, length, rows))]
  if (rows === 1) lanes.push(decoding('peer', 'onnxruntime-node, past in and present out', copying(running.session, length, rows), collect))
  for (const [backend, model] of Object.entries(running.models)) {
    const sequences = await filled(model, length, rows)
    opened.push(...sequences)
    const items = sequences.map(sequence => ({ sequence, tokens: [5] }))
    const reset = (): void => sequences.forEach(sequence => sequence.truncate(length))
    lanes.push(decoding('ours', `kvtide, ${backend}`, { reset, step: async () => void (await model.run(items)) }))
  }
  const measured = await measure(lanes, rounds)
  opened.forEach(sequence => sequence.dispose())
  await end(running)
  const ratios: Ratio[] = [
    { id: `${id}/peer-over-graph`, over: 'onnxruntime-node, one buffer', under: 'kvtide, graph', toReach: { atLeast: targets.peer } },
    { id: `${id}/parts-over-graph`, over: 'kvtide, parts', under: 'kvtide, graph', toReach: targets.parts === undefined ? 'less' : { atMost: targets.parts } },
    ...(rows === 1 ? [{ id: `${id}/copying-over-graph`, over: 'onnxruntime-node, past in and present out', under: 'kvtide, graph', toReach: { atLeast: targets.peer } } satisfies Ratio] : []),
  ]
  return workloadOf(id, `A decoder of ${layers} layers: one token for ${rows === 1 ? 'a sequence' : `each of ${rows} sequences`} of ${length}, ${many(threads)}`, 'step', measured, ratios)
}

/** A prompt from nothing. */
export async function prefill(length: number, threads: number, rounds: number): Promise<Workload> {
  const id = `js-onnx-prefill-${length}-${threads}`
  const running = await start(threads, 4 * length * 2 * layers * kvHeads * headDim * 4)
  const tokens = ids(length, 1)
  const nothing = names('past_key_values').map(name => [name, new Tensor('float32', new Float32Array(0), [1, kvHeads, 0, headDim])] as const)
  const feeds = { input_ids: int64([...tokens], [1, length]), attention_mask: ones(1, length), ...Object.fromEntries(nothing) }
  let salt = 0
  const ours = Object.entries(running.models).map(([backend, model]) =>
    lane('ours', `kvtide, ${backend}`, length, async () => {
      // Another salt: nothing is found.
      using sequence = model.open({ tokens, salt: `${salt++}` })
      await model.run([{ sequence }])
    }, { shared: true }),
  )
  const measured = await measureLong([lane('peer', 'onnxruntime-node', length, async () => void (await running.session.run(feeds)), { shared: true }), ...ours], rounds)
  await end(running)
  return workloadOf(id, `A decoder of ${layers} layers: a prompt of ${length}, ${many(threads)}`, 'token', measured, [
    { id: `${id}/peer-over-graph`, over: 'onnxruntime-node', under: 'kvtide, graph', toReach: { atLeast: 1 } },
    { id: `${id}/peer-over-parts`, over: 'onnxruntime-node', under: 'kvtide, parts', toReach: 'more' },
  ])
}

/** The first token of a prompt of which most was computed before, for somebody else. */
export async function shared(common: number, own: number, threads: number, rounds: number): Promise<Workload> {
  const id = `js-onnx-shared-${common}-${threads}`
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const model = await OnnxModel.load(path, { backend: 'graph', threads, cache: { memoryBytes: 2 ** 30, maxSequences: 32 } })
  const known = ids(common, 1)
  using before = model.open({ tokens: known, salt: 'found' })
  await model.run([{ sequence: before }])
  let turn = 0
  const first = (salt: () => string) => async (): Promise<void> => {
    turn += 1
    using sequence = model.open({ tokens: Uint32Array.from([...known, ...ids(own, turn)]), salt: salt() })
    for await (const _ of model.generate(sequence, { maxTokens: 1, temperature: 0 }));
  }
  const measured = await measureLong([lane('baseline', 'computed anew', 1, first(() => `${turn}`), { shared: true }), lane('ours', 'found', 1, first(() => 'found'), { shared: true })], rounds)
  before.dispose()
  await model.dispose()
  return workloadOf(id, `The first token of a prompt of ${common} shared tokens and ${own} new ones, ${many(threads)}`, 'prompt', measured, [
    { id: `${id}/anew-over-found`, over: 'computed anew', under: 'found', toReach: { atLeast: 8 } },
  ])
}

/** Clients at once, against the same one after the other; and how long the main thread was held up. */
export async function clients(count: number, prompt: number, answer: number, threads: number, rounds: number): Promise<Workload> {
  const id = `js-onnx-clients-${count}-${threads}`
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const model = await OnnxModel.load(path, { backend: 'graph', threads, cache: { memoryBytes: 2 ** 31, maxSequences: count } })
  let turn = 0
  const one = async (): Promise<void> => {
    turn += 1
    using sequence = model.open({ tokens: ids(prompt, turn), salt: `${turn}` })
    for await (const _ of model.generate(sequence, { maxTokens: answer, temperature: 0 }));
  }
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  const operations = count * answer
  const measured = await measureLong(
    [
      lane('baseline', 'one after the other', operations, async () => {
        for (let client = 0; client < count; client++) await one()
      }, { shared: true }),
      lane('ours', 'at once', operations, async () => void (await Promise.all(Array.from({ length: count }, one))), { shared: true }),
    ],
    rounds,
  )
  delay.disable()
  await model.dispose()
  console.log(`main thread held up, with ${availableParallelism()} processors: p99 ${(delay.percentile(99) / 1e6).toFixed(2)} ms, most ${(delay.max / 1e6).toFixed(2)} ms`)
  return workloadOf(id, `${count} clients, ${prompt} tokens in and ${answer} out, ${many(threads)}`, 'token', measured, [
    { id: `${id}/alone-over-at-once`, over: 'one after the other', under: 'at once', toReach: { atLeast: 2.5 } },
  ])
}

/** As much of node-llama-cpp as is used here. It is not among what the checkout installs. */
interface LlamaCpp {
  getLlama(options: object): Promise<{ loadModel(options: object): Promise<{ createContext(options: object): Promise<LlamaContext>; dispose(): Promise<void> }> }>
}
interface LlamaContext {
  getSequence(): { evaluate(tokens: readonly number[], options: object): AsyncIterable<number>; dispose(): void }
}

/** The same clients in node-llama-cpp, with the same weights and floats for K and V. The tokens have to be the same. */
export async function besideLlamaCpp(count: number, prompt: number, answer: number, threads: number, rounds: number): Promise<Workload | Skipped> {
  const id = `js-onnx-llama-cpp-${count}-${threads}`
  const name = 'node-llama-cpp'
  let llama: LlamaCpp
  try {
    llama = (await import(name)) as LlamaCpp
  } catch {
    return { id, skipped: 'node-llama-cpp is not installed: `npm install --no-save --ignore-scripts node-llama-cpp`' }
  }
  const folder = join(REPORTS, 'decoder')
  const runtime = await llama.getLlama({ gpu: false, build: 'never', logLevel: 'error' })
  const theirs = await runtime.loadModel({ modelPath: writeGguf(folder) })
  const types = { experimentalKvCacheKeyType: 'F32', experimentalKvCacheValueType: 'F32', flashAttention: false }
  const context = await theirs.createContext({ sequences: count, contextSize: prompt + answer + 64, batchSize: 512, threads, ...types })
  const model = await OnnxModel.load(writeDecoder(folder), { backend: 'graph', threads, cache: { memoryBytes: 2 ** 31, maxSequences: count } })
  let turn = 0
  const said = new Map<number, string>()
  const check = (seed: number, tokens: readonly number[]): void => {
    const before = said.get(seed)
    if (before !== undefined && before !== tokens.join(' ')) throw new Error(`other tokens behind prompt ${seed}: ${tokens.join(' ')} instead of ${before}`)
    said.set(seed, tokens.join(' '))
  }
  const ours = async (seed: number): Promise<void> => {
    turn += 1
    using sequence = model.open({ tokens: ids(prompt, seed), salt: `${turn}` })
    const tokens: number[] = []
    for await (const token of model.generate(sequence, { maxTokens: answer })) tokens.push(token)
    check(seed, tokens)
  }
  const other = async (seed: number): Promise<void> => {
    const sequence = context.getSequence()
    const tokens: number[] = []
    for await (const token of sequence.evaluate([...ids(prompt, seed)], { temperature: 0, yieldEogToken: true })) {
      tokens.push(token)
      if (tokens.length === answer) break
    }
    sequence.dispose()
    check(seed, tokens)
  }
  const each = async (one: (seed: number) => Promise<void>): Promise<void> => void (await Promise.all(Array.from({ length: count }, (_, seed) => one(seed))))
  const measured = await measureLong(
    [
      lane('peer', 'node-llama-cpp, one client', answer, () => other(0), { shared: true }),
      lane('ours', 'kvtide, one client', answer, () => ours(0), { shared: true }),
      lane('peer', `node-llama-cpp, ${count} at once`, count * answer, () => each(other), { shared: true }),
      lane('ours', `kvtide, ${count} at once`, count * answer, () => each(ours), { shared: true }),
    ],
    rounds,
  )
  await model.dispose()
  await theirs.dispose()
  return workloadOf(id, `${count} clients, ${prompt} tokens in and ${answer} out, beside node-llama-cpp, ${many(threads)}`, 'token that comes out', measured, [
    { id: `${id}/one`, over: 'node-llama-cpp, one client', under: 'kvtide, one client', toReach: 'more' },
    { id: `${id}/all`, over: `node-llama-cpp, ${count} at once`, under: `kvtide, ${count} at once`, toReach: 'more' },
  ])
}
