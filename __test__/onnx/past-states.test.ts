// `OnnxPast` over sessions whose layers keep states: what a call has seen is exactly the tokens of the list, however often it is cut and changed.
import * as ort from 'onnxruntime-node'

import { isKvTideError, type ModelDescription, PagedKvCache } from '../../index.js'
import { OnnxPast, type OnnxPastOptions } from '../../lib/onnx/past.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { argmax, quiet } from '../support/onnx/graphs.js'
import { following, greedy, hybridGraph, type HybridForm, POISON, VOCABULARY } from '../support/onnx/hybrid-graph.js'

const conv = (columns: number) => ({ name: 'conv', shape: [8, columns], dtype: 'f32' })
const LAYERS = [
  { kind: 'state', tensors: [conv(2)] },
  { kind: 'full', numKvHeads: 1, headDim: 8, tensors: [conv(3)] },
  { kind: 'state', tensors: [{ name: 'recurrent', shape: [8], dtype: 'f32' }] },
  { kind: 'state', tensors: [conv(1), { name: 'ssm', shape: [2, 4], dtype: 'f32' }] },
]

const cacheOf = (layers: readonly unknown[] = LAYERS): PagedKvCache =>
  new PagedKvCache({ model: { layers } as unknown as ModelDescription, blockSize: 8, capacity: 100 })

const prompt = Array.from({ length: 45 }, (_, at) => (at * at * 3 + at) % (VOCABULARY - 1))

interface Running {
  readonly past: OnnxPast<ort.Tensor>
  readonly session: ort.InferenceSession
  /** The number of tokens that each call computed. */
  readonly computed: number[]
}

async function open(
  cache: PagedKvCache,
  form: HybridForm = {},
  more: Partial<OnnxPastOptions<ort.Tensor>> = {},
): Promise<Running> {
  const session = await ort.InferenceSession.create(hybridGraph(form), quiet)
  return { past: new OnnxPast<ort.Tensor>({ session, cache, Tensor: ort.Tensor, ...more }), session, computed: [] }
}

/** Runs what is left of a list of tokens; commits all of it, or a part. Returns the token after the last one. */
async function step({ past, session, computed }: Running, tokens: readonly number[], kept?: number): Promise<number> {
  const { feeds, tokens: rest } = past.resume(tokens)
  computed.push(rest.length)
  const outputs = (await session.run(feeds)) as Record<string, ort.Tensor>
  past.commit(outputs, kept === undefined ? rest : rest.subarray(0, kept))
  const { data } = outputs['logits'] as ort.Tensor
  return argmax((data as Float32Array).slice(-VOCABULARY))
}

test('in one piece, in pieces, found again, forked, cut and changed', async t => {
  using cache = cacheOf()
  const chat = await open(cache)
  for (let end = 16; end < prompt.length; end += 16)
    t.is(await step(chat, prompt.slice(0, end)), following(prompt.slice(0, end)).at(-1) as number)
  const tokens = [...prompt]
  while (tokens.length < 60) tokens.push(await step(chat, tokens))
  t.deepEqual(tokens.slice(prompt.length), greedy(prompt, 15))
  t.deepEqual(chat.computed.slice(0, 4), [16, 16, 13, 1])
  t.is(chat.past.length, 59)

  // A second prompt finds the states behind 32 tokens.
  const second = await open(cache)
  const again = [...prompt.slice(0, 40), 3, 4]
  t.is(await step(second, again), following(again).at(-1) as number)
  t.deepEqual(second.computed, [again.length - 32])

  const fork = { ...chat, past: chat.past.fork(), computed: [] as number[] }
  t.is(await step(fork, [...tokens.slice(0, 59), 9, 8]), following([...tokens.slice(0, 59), 9, 8]).at(-1) as number)
  t.deepEqual(fork.computed, [2])
  t.is(await step(chat, tokens), following(tokens).at(-1) as number, 'the fork has changed nothing')

  // Cut where there is no state: it is computed from the last one before.
  for (const length of [58, 47, 33, 20, 5]) {
    const list = [...tokens.slice(0, length), 1, 2]
    const cut = { ...chat, past: chat.past.fork(), computed: [] as number[] }
    t.is(await step(cut, list), following(list).at(-1) as number, `cut at ${length}`)
    t.is(cut.past.length, list.length)
    cut.past.dispose()
  }
  for (const { past } of [chat, second, fork]) past.dispose()
  cache.checkInvariants()
  t.is(cache.sequenceIds().length, 0)
})

test('a part of the computed tokens has no states: none of them is kept, and the next call computes them', async t => {
  using cache = cacheOf()
  const chat = await open(cache)
  await step(chat, prompt.slice(0, 32))
  const drafted = [...prompt.slice(0, 36), 1, 2]
  await step(chat, drafted, 4)
  t.is(chat.past.length, 32)
  t.is(await step(chat, prompt.slice(0, 38)), following(prompt.slice(0, 38)).at(-1) as number)
  t.deepEqual(chat.computed, [32, 6, 6])
  await step(chat, prompt.slice(0, 40), 0)
  t.is(chat.past.length, 38)
  t.is(await step(chat, prompt.slice(0, 40)), following(prompt.slice(0, 40)).at(-1) as number)
})

test('a model without attention, and names of the caller', async t => {
  const names = { pastKey: 'k%d', pastValue: 'v%d', presentKey: 'nk%d', presentValue: 'nv%d' }
  const states = { pastStates: 'in/%s@%d', presentStates: 'out/%s@%d' }
  using cache = cacheOf(LAYERS.map(({ tensors }) => ({ kind: 'state', tensors })))
  const form: HybridForm = {
    hasAttention: false,
    names: (layer, tensor) => [`in/${tensor}@${layer}`, `out/${tensor}@${layer}`],
  }
  const chat = await open(cache, form, { names: { ...names, ...states } })
  const tokens = [...prompt]
  while (tokens.length < 55) tokens.push(await step(chat, tokens))
  t.deepEqual(tokens.slice(prompt.length), greedy(prompt, 10, false))
})

test('states that do not fit are refused with the tensor or the layer', async t => {
  for (const [layers, message] of [
    [LAYERS.slice(0, 3), /a cache with 5 states, as the session has/],
    [
      LAYERS.with(0, { kind: 'state', tensors: [conv(3)] }),
      /^cache is "\[8, 3\]", expected \[8, 2\] in layer 0, as past_conv\.0 is/,
    ],
    [
      LAYERS.with(2, { kind: 'state', tensors: [{ name: 'ssm', shape: [8], dtype: 'f32' }] }),
      /a state recurrent in layer 2, as past_recurrent\.2 is/,
    ],
    [
      LAYERS.with(2, { kind: 'state', tensors: [{ name: 'recurrent', shape: [8], dtype: 'f16' }] }),
      /^cache is "?f16"?, expected f32 in layer 2, the type of past_recurrent\.2/,
    ],
  ] as const) {
    using cache = cacheOf(layers)
    const error = await t.throwsAsync(open(cache))
    t.true(isKvTideError(error) && error.code === 'INVALID_ARGUMENT', String(error))
    t.regex((error as Error).message, message)
  }
  using cache = cacheOf()
  const chat = await open(cache)
  await step(chat, prompt.slice(0, 9))
  const error = await t.throwsAsync(step(chat, [...prompt.slice(0, 9), POISON]))
  t.true(isKvTideError(error) && error.code === 'RUNTIME_FAILED', String(error))
  t.is(chat.past.length, 9)
  t.is(await step(chat, prompt.slice(0, 10)), following(prompt.slice(0, 10)).at(-1) as number)
})
