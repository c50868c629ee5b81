// Measures a decoder in onnxruntime-node, which passes past and present, against the same decoder in kvtide/onnx.
//
// onnxruntime-node offers two ways: past in and present out, which copies everything at each step; and one buffer for both, which is allocated for
// the maximum length at the start. Each lane of a decoder's steps and of its prompts has a process of its own (onnx-lanes.ts).
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'

import { OnnxModel } from 'kvtide/onnx'

import { workloadOf, type Ratio, type Skipped, type Workload } from '../report/report.js'
import { apart } from '../run/apart.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'
import { DECODER, writeDecoder } from './decoder.js'
import { writeGguf } from './gguf.js'
import { STEPS, ids, likeliest, type LaneOf } from './onnx-lanes.js'

const { layers } = DECODER

/** Measures rounds that take seconds; only the first one warms up. */
const measureLong = (lanes: readonly Contestant[], rounds: number): ReturnType<typeof measure> =>
  measure(lanes, rounds, undefined, 1)

const many = (threads: number): string => (threads === 1 ? '1 thread' : `${threads} threads`)

/** Measures lanes in separate processes. Each lane has a role, a name and a way; all of them do `what`. */
async function measureApart(
  what: 'decode' | 'prefill',
  lanes: readonly (readonly ['peer' | 'ours', string, LaneOf['way']])[],
  sizes: Omit<LaneOf, 'what' | 'way' | 'path'>,
  operations: number,
  run: (lanes: readonly Contestant[]) => ReturnType<typeof measure>,
): ReturnType<typeof measure> {
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const children = []
  for (const [role, name, way] of lanes) {
    const of: LaneOf = { what, way, path, ...sizes }
    children.push({ role, name, child: await apart(new URL('onnx-lanes.ts', import.meta.url), of) })
  }
  try {
    return await run(
      children.map(({ role, name, child }) => lane(role, name, operations, () => child.round(), { shared: true })),
    )
  } finally {
    children.forEach(({ child }) => child.end())
  }
}

/** Measures a step of one token for each of `rows` sequences of this length. */
export async function decode(
  length: number,
  rows: number,
  threads: number,
  rounds: number,
  targets: { readonly peer: number; readonly parts?: number },
): Promise<Workload> {
  const id = `js-onnx-${rows === 1 ? '' : `${rows}x`}${length}-${threads}`
  const lanes = [
    ['peer', 'onnxruntime-node, one buffer', 'sharing'],
    ...(rows === 1 ? [['peer', 'onnxruntime-node, past in and present out', 'copying'] as const] : []),
    ['ours', 'kvtide, graph', 'graph'],
    ['ours', 'kvtide, parts', 'parts'],
  ] as const
  const measured = await measureApart('decode', lanes, { length, rows, threads }, STEPS, contestants =>
    measure(contestants, rounds),
  )
  const ratios: Ratio[] = [
    {
      id: `${id}/peer-over-graph`,
      over: 'onnxruntime-node, one buffer',
      under: 'kvtide, graph',
      toReach: { atLeast: targets.peer },
    },
    {
      id: `${id}/parts-over-graph`,
      over: 'kvtide, parts',
      under: 'kvtide, graph',
      toReach: targets.parts === undefined ? 'less' : { atMost: targets.parts },
    },
    ...(rows === 1
      ? [
          {
            id: `${id}/copying-over-graph`,
            over: 'onnxruntime-node, past in and present out',
            under: 'kvtide, graph',
            toReach: { atLeast: targets.peer },
          } satisfies Ratio,
        ]
      : []),
  ]
  const workload = workloadOf(
    id,
    `A decoder of ${layers} layers: one token for ${rows === 1 ? 'a sequence' : `each of ${rows} sequences`} of ${length}, ${many(threads)}`,
    'step',
    measured,
    ratios,
  )
  return { ...workload, memory: 'usual' }
}

/** Measures computing a prompt without any cached prefix. */
export async function prefill(length: number, threads: number, rounds: number): Promise<Workload> {
  const id = `js-onnx-prefill-${length}-${threads}`
  const lanes = [
    ['peer', 'onnxruntime-node', 'copying'],
    ['ours', 'kvtide, graph', 'graph'],
    ['ours', 'kvtide, parts', 'parts'],
  ] as const
  const measured = await measureApart('prefill', lanes, { length, rows: 1, threads }, length, contestants =>
    measureLong(contestants, rounds),
  )
  const workload = workloadOf(
    id,
    `A decoder of ${layers} layers: a prompt of ${length}, ${many(threads)}`,
    'token',
    measured,
    [
      { id: `${id}/peer-over-graph`, over: 'onnxruntime-node', under: 'kvtide, graph', toReach: { atLeast: 1 } },
      { id: `${id}/peer-over-parts`, over: 'onnxruntime-node', under: 'kvtide, parts', toReach: 'more' },
    ],
  )
  return { ...workload, memory: 'usual' }
}

/** Measures the first token of a prompt that shares most of its tokens with an earlier one: a cache hit, a cache miss, and onnxruntime-node. */
export async function shared(common: number, own: number, threads: number, rounds: number): Promise<Workload> {
  const id = `js-onnx-shared-${common}-${threads}`
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const model = await OnnxModel.load(path, {
    backend: 'graph',
    threads,
    cache: { memoryBytes: 2 ** 30, maxSequences: 32 },
  })
  const known = ids(common, 1)
  using before = model.open({ tokens: known, salt: 'found' })
  await model.run([{ sequence: before }])
  let turn = 0
  const prompt = (): Uint32Array => Uint32Array.from([...known, ...ids(own, (turn += 1))])
  const first = async (tokens: Uint32Array, salt: string): Promise<number | undefined> => {
    using sequence = model.open({ tokens, salt })
    const options = { maxTokens: 1, temperature: 0, ignoreEndOfSequence: true }
    for await (const token of model.generate(sequence, options)) return token
    return undefined
  }
  const asked = prompt()
  const [theirs, mine] = [await likeliest(path, asked, threads), await first(asked, 'found')]
  if (theirs !== mine) throw new Error(`kvtide's first token is ${mine}, that of onnxruntime-node ${theirs}`)
  const of: LaneOf = { what: 'prefill', way: 'copying', path, length: common + own, rows: 1, threads }
  const peer = await apart(new URL('onnx-lanes.ts', import.meta.url), of)
  const measured = await measureLong(
    [
      lane('peer', 'onnxruntime-node, the whole prompt', 1, () => peer.round(), { shared: true }),
      lane('baseline', 'cache miss', 1, async () => void (await first(prompt(), `${turn}`)), { shared: true }),
      lane('ours', 'cache hit', 1, async () => void (await first(prompt(), 'found')), { shared: true }),
    ],
    rounds,
  )
  peer.end()
  before.dispose()
  await model.dispose()
  return workloadOf(
    id,
    `The first token of a prompt of ${common} shared tokens and ${own} new ones, ${many(threads)}`,
    'prompt',
    measured,
    [
      { id: `${id}/peer-over-found`, over: 'onnxruntime-node, the whole prompt', under: 'cache hit', toReach: 'more' },
      { id: `${id}/anew-over-found`, over: 'cache miss', under: 'cache hit', toReach: { atLeast: 8 } },
    ],
  )
}

/** Measures clients at once, against the same clients one after the other, and prints how long the main thread was blocked. */
export async function clients(
  count: number,
  prompt: number,
  answer: number,
  threads: number,
  rounds: number,
): Promise<Workload> {
  const id = `js-onnx-clients-${count}-${threads}`
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const model = await OnnxModel.load(path, {
    backend: 'graph',
    threads,
    cache: { memoryBytes: 2 ** 31, maxSequences: count },
  })
  let turn = 0
  const one = async (): Promise<void> => {
    turn += 1
    using sequence = model.open({ tokens: ids(prompt, turn), salt: `${turn}` })
    const options = { maxTokens: answer, temperature: 0, ignoreEndOfSequence: true }
    for await (const _ of model.generate(sequence, options));
  }
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  const operations = count * answer
  const measured = await measureLong(
    [
      lane(
        'baseline',
        'one after the other',
        operations,
        async () => {
          for (let client = 0; client < count; client++) await one()
        },
        { shared: true },
      ),
      lane('ours', 'at once', operations, async () => void (await Promise.all(Array.from({ length: count }, one))), {
        shared: true,
      }),
    ],
    rounds,
  )
  delay.disable()
  await model.dispose()
  console.log(
    `main thread blocked, with ${availableParallelism()} processors: p99 ${(delay.percentile(99) / 1e6).toFixed(2)} ms, most ${(delay.max / 1e6).toFixed(2)} ms`,
  )
  return workloadOf(
    id,
    `${count} clients, ${prompt} tokens in and ${answer} out, ${many(threads)}`,
    'token',
    measured,
    [{ id: `${id}/alone-over-at-once`, over: 'one after the other', under: 'at once', toReach: { atLeast: 2.5 } }],
  )
}

/** The part of node-llama-cpp that is used here. `npm ci` does not install it. */
interface LlamaCpp {
  getLlama(
    options: object,
  ): Promise<{
    loadModel(
      options: object,
    ): Promise<{ createContext(options: object): Promise<LlamaContext>; dispose(): Promise<void> }>
  }>
}
interface LlamaContext {
  getSequence(): { evaluate(tokens: readonly number[], options: object): AsyncIterable<number>; dispose(): void }
}

/** Loads the decoder in node-llama-cpp, with floats for K and V. Returns `undefined` if the package is not installed. */
async function llamaCpp(
  folder: string,
  options: object,
): Promise<{ context: LlamaContext; dispose(): Promise<void> } | undefined> {
  const name = 'node-llama-cpp'
  let llama: LlamaCpp
  try {
    llama = (await import(name)) as LlamaCpp
  } catch {
    return undefined
  }
  const runtime = await llama.getLlama({ gpu: false, build: 'never', logLevel: 'error' })
  const model = await runtime.loadModel({ modelPath: writeGguf(folder) })
  const types = { experimentalKvCacheKeyType: 'F32', experimentalKvCacheValueType: 'F32', flashAttention: false }
  return {
    context: await model.createContext({ batchSize: 512, ...types, ...options }),
    dispose: () => model.dispose(),
  }
}

/** Measures the same clients in node-llama-cpp, with the same weights and floats for K and V. The tokens must be the same. */
export async function besideLlamaCpp(
  count: number,
  prompt: number,
  answer: number,
  threads: number,
  rounds: number,
): Promise<Workload | Skipped> {
  const id = `js-onnx-llama-cpp-${count}-${threads}`
  const folder = join(REPORTS, 'decoder')
  const theirs = await llamaCpp(folder, { sequences: count, contextSize: prompt + answer + 64, threads })
  if (theirs === undefined)
    return { id, skipped: 'node-llama-cpp is not installed: `npm install --no-save --ignore-scripts node-llama-cpp`' }
  const model = await OnnxModel.load(writeDecoder(folder), {
    backend: 'graph',
    threads,
    cache: { memoryBytes: 2 ** 31, maxSequences: count },
  })
  let turn = 0
  const said = new Map<number, string>()
  const check = (seed: number, tokens: readonly number[]): void => {
    const before = said.get(seed)
    if (before !== undefined && before !== tokens.join(' '))
      throw new Error(`different tokens after prompt ${seed}: ${tokens.join(' ')} instead of ${before}`)
    said.set(seed, tokens.join(' '))
  }
  const ours = async (seed: number): Promise<void> => {
    turn += 1
    using sequence = model.open({ tokens: ids(prompt, seed), salt: `${turn}` })
    const tokens: number[] = []
    for await (const token of model.generate(sequence, { maxTokens: answer, ignoreEndOfSequence: true }))
      tokens.push(token)
    check(seed, tokens)
  }
  const other = async (seed: number): Promise<void> => {
    const sequence = theirs.context.getSequence()
    const tokens: number[] = []
    for await (const token of sequence.evaluate([...ids(prompt, seed)], { temperature: 0, yieldEogToken: true })) {
      tokens.push(token)
      if (tokens.length === answer) break
    }
    sequence.dispose()
    check(seed, tokens)
  }
  const each = async (one: (seed: number) => Promise<void>): Promise<void> =>
    void (await Promise.all(Array.from({ length: count }, (_, seed) => one(seed))))
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
  return workloadOf(
    id,
    `${count} clients, ${prompt} tokens in and ${answer} out, beside node-llama-cpp, ${many(threads)}`,
    'output token',
    measured,
    [
      { id: `${id}/one`, over: 'node-llama-cpp, one client', under: 'kvtide, one client', toReach: 'more' },
      { id: `${id}/all`, over: `node-llama-cpp, ${count} at once`, under: `kvtide, ${count} at once`, toReach: 'more' },
    ],
  )
}
