// Sessions that the user made, with the past of each sequence in a cache.
import test from 'ava'
import * as ort from 'onnxruntime-node'

import { isKvTideError, PagedKvCache, type ErrorCode } from '../../index.js'
import { OnnxPast, type OnnxPastOptions } from '../../lib/onnx/past.js'
import { binding } from '../../lib/loading/binding.js'
import { argmax, floats, graphFile, openSession, quiet, referenceOf } from '../support/onnx/graphs.js'

const sizes = { numLayers: 3, numKvHeads: 2, headDim: 16, blockSize: 16, capacity: 64 } as const
const llama = referenceOf('llama')
const [short, long] = [llama.prompts['p33'] as number[], llama.prompts['p100'] as number[]]

/** The last row of logits. */
const last = ({ logits }: Readonly<Record<string, ort.Tensor>>): Float32Array =>
  floats(logits as ort.Tensor).slice(-(logits as ort.Tensor).dims[2]!)

interface Running {
  readonly past: OnnxPast<ort.Tensor>
  readonly session: ort.InferenceSession
  /** The number of tokens that each call computed. */
  readonly computed: number[]
}

/** Runs what is left of a list of tokens and commits it; gives the last row. */
async function step({ past, session, computed }: Running, tokens: readonly number[]): Promise<Float32Array> {
  const { feeds, tokens: rest } = past.resume(tokens)
  computed.push(rest.length)
  const outputs = (await session.run(feeds)) as Record<string, ort.Tensor>
  past.commit(outputs)
  return last(outputs)
}

/** Greedy tokens behind a prompt, whose pieces are given one after the other. */
async function greedy(
  running: Running,
  prompt: readonly number[],
  count: number,
  piece = prompt.length,
): Promise<number[]> {
  const tokens = [...prompt]
  for (let end = piece; end < prompt.length; end += piece) await step(running, prompt.slice(0, end))
  while (tokens.length < prompt.length + count) tokens.push(argmax(await step(running, tokens)))
  return tokens.slice(prompt.length)
}

function makes(
  session: ort.InferenceSession,
  cache: PagedKvCache,
  more: Partial<OnnxPastOptions<ort.Tensor>> = {},
): Running {
  return { past: new OnnxPast<ort.Tensor>({ session, cache, Tensor: ort.Tensor, ...more }), session, computed: [] }
}

for (const graph of ['onnx', 'onnx-gqa-f32', 'onnx-gqa-f32-ext', 'onnx-gqa-pos-f32', 'onnx-gqa-f16']) {
  test(`${graph}: greedy tokens are those of the reference, in one piece, in pieces and found again`, async t => {
    using cache = new PagedKvCache({ ...sizes, dtype: graph.endsWith('f16') ? 'f16' : 'f32' })
    const session = await openSession(`llama/${graph}`)
    const expected = llama.greedy['p100']?.slice(0, 20)
    const whole = makes(session, cache)
    t.deepEqual(await greedy(whole, long, 20), expected)
    t.deepEqual([whole.computed[0], ...new Set(whole.computed.slice(1))], [100, 1])
    // A second sequence finds the first one's blocks, and computes the rest.
    const again = makes(session, cache)
    t.deepEqual(await greedy(again, long, 20), expected)
    t.is(again.computed[0], 4)
    const other = makes(session, cache, { salt: 'another tenant' })
    t.deepEqual(await greedy(other, long, 20, 7), expected)
    t.deepEqual(other.computed.slice(0, 15), [...Array.from({ length: 14 }, () => 7), 2])
    t.is(other.past.length, 119)
    for (const { past } of [whole, again, other]) past.dispose()
    cache.checkInvariants()
    t.is(cache.sequenceIds().length, 0)
  })
}

test('lists that were cut, changed or forked go on from where they are the same', async t => {
  using cache = new PagedKvCache(sizes)
  const session = await openSession('llama/onnx')
  const chat = makes(session, cache)
  const first = await greedy(chat, short, 12)
  t.deepEqual(first, llama.greedy['p33']?.slice(0, 12))
  // A fork goes on with the same presents; the first one goes on as if there were none.
  using fork = chat.past.fork()
  const other = { past: fork, session, computed: [] as number[] }
  const changed = [...short, ...first.slice(0, 5), 9, 10]
  const fresh = makes(session, new PagedKvCache(sizes))
  t.deepEqual(argmax(await step(other, changed)), argmax(await step(fresh, changed)))
  t.deepEqual(other.computed, [2])
  t.deepEqual(await greedy(chat, [...short, ...first], 4), llama.greedy['p33']?.slice(12, 16))
  t.deepEqual(chat.computed.slice(-4), [1, 1, 1, 1])
  // The same list once more: its last token is computed again.
  t.deepEqual(argmax(await step(chat, short)), first[0])
  t.is(chat.computed.at(-1), 1)
  t.is(chat.past.length, 33)
  // Nothing in common.
  t.deepEqual(await greedy(chat, long, 3), llama.greedy['p100']?.slice(0, 3))
  cache.checkInvariants()
})

test('of what was computed a part may count', async t => {
  using cache = new PagedKvCache(sizes)
  const session = await openSession('llama/onnx-gqa-pos-f32')
  const running = makes(session, cache)
  const expected = llama.greedy['p33'] as number[]
  const drafted = [...short, ...expected.slice(0, 3), 5, 6]
  const { feeds, tokens } = running.past.resume(drafted)
  t.is(tokens.length, 38)
  const outputs = (await session.run(feeds)) as Record<string, ort.Tensor>
  running.past.commit(outputs, tokens.subarray(0, 36))
  t.is(running.past.length, 36)
  t.deepEqual(await greedy(running, [...short, ...expected.slice(0, 4)], 5), expected.slice(4, 9))
  // Nothing of it: the sequence is as it was, and its presents still count.
  const before = running.past.length
  const next = running.past.resume([...short, ...expected.slice(0, 9)])
  running.past.commit((await session.run(next.feeds)) as Record<string, ort.Tensor>, [])
  t.is(running.past.length, before)
  t.deepEqual(await greedy(running, [...short, ...expected.slice(0, 9)], 3), expected.slice(9, 12))
})

test('tokens may change between a call and its commit', async t => {
  using cache = new PagedKvCache(sizes)
  const running = makes(await openSession('llama/onnx-gqa-pos-f32'), cache)
  const tokens = Uint32Array.from(short)
  const { feeds } = running.past.resume(tokens)
  const outputs = (await running.session.run(feeds)) as Record<string, ort.Tensor>
  tokens.fill(9)
  running.past.commit(outputs)
  t.is(cache.match(short).length, 32)
  t.is(cache.match(tokens).length, 0)
  t.deepEqual(await greedy(running, short, 4), llama.greedy['p33']?.slice(0, 4))
})

test('a session with new rows as outputs gives the same tokens', async t => {
  const file = graphFile('llama/onnx-gqa-f32')
  const graph = await binding.NativeOnnxGraph.open(file)
  const presents = graph
    .outputs()
    .map(port => port.name)
    .filter(name => name.startsWith('present'))
  const suffix = graph.newRowsSuffix(presents)
  const session = await ort.InferenceSession.create(Buffer.concat([await graph.model(), suffix]), quiet)
  t.true(session.inputNames.includes('kvtide.new_rows'))
  using cache = new PagedKvCache(sizes)
  const running = makes(session, cache)
  t.deepEqual(await greedy(running, short, 10, 10), llama.greedy['p33']?.slice(0, 10))
  const error = t.throws(() => graph.newRowsSuffix(['logits']))
  t.true(isKvTideError(error) && error.code === 'UNSUPPORTED_GRAPH')
})

// A graph with a window, two exporters: one sees it in a mask, the other one slides the past by itself.
for (const exporter of ['optimum', 'builder']) {
  test(`qwen2-window/${exporter}: a layer with a window, after cuts and matches too`, async t => {
    const expected = referenceOf('families/qwen2-window')
    const prompt = expected.prompts['p33'] as number[]
    const session = await openSession(`families/qwen2-window/${exporter}`)
    const layer = { numKvHeads: 2, headDim: 16 }
    for (const model of [
      {
        layers: [
          { kind: 'full', ...layer },
          { kind: 'sliding', window: 9, ...layer },
        ],
      },
      ...(exporter === 'optimum'
        ? [
            {
              layers: [
                { kind: 'full', ...layer },
                { kind: 'full', ...layer },
              ],
            },
          ]
        : []),
    ] as const) {
      for (const piece of [33, 4, 1]) {
        using cache = new PagedKvCache({ model, blockSize: 4, capacity: 200 } as never)
        const running = makes(session, cache)
        t.deepEqual(await greedy(running, prompt, 12, piece), expected.greedy['p33'], `pieces of ${piece}`)
        using other = makes(session, cache).past
        const second = { past: other, session, computed: [] as number[] }
        t.deepEqual(await greedy(second, prompt, 12), expected.greedy['p33'], `found again`)
        t.true((second.computed[0] as number) < 33)
        t.deepEqual(
          await greedy(second, [...prompt, ...(expected.greedy['p33'] as number[]).slice(0, 10)], 2),
          expected.greedy['p33']?.slice(10),
        )
        const cut = [...prompt.slice(0, 20), 7, 8]
        const alone = makes(session, new PagedKvCache({ model, blockSize: 4, capacity: 200 } as never))
        const [found, wanted] = [await step(second, cut), await step(alone, cut)]
        t.true(found.every((value, place) => Math.abs(value - (wanted[place] as number)) < 1e-4))
        cache.checkInvariants()
      }
    }
  })
}

function refused(
  t: { throws(run: () => unknown): unknown; true(value: boolean, message?: string): unknown },
  code: ErrorCode,
  text: RegExp,
  run: () => unknown,
): void {
  const error = t.throws(run)
  t.true(isKvTideError(error) && error.code === code && text.test(error.message), String(error))
}

test('what does not fit is refused by name, and changes nothing', async t => {
  using cache = new PagedKvCache(sizes)
  const session = await openSession('llama/onnx')
  const options = { session, cache, Tensor: ort.Tensor }
  const past = new OnnxPast<ort.Tensor>(options)
  const made =
    (more: object): (() => unknown) =>
    () =>
      new OnnxPast({ ...options, ...more } as never)
  refused(t, 'INVALID_ARGUMENT', /^session is /, made({ session: {} }))
  refused(t, 'INVALID_ARGUMENT', /^cache is /, made({ cache: {} }))
  refused(t, 'INVALID_ARGUMENT', /^Tensor is /, made({ Tensor: undefined }))
  refused(t, 'INVALID_ARGUMENT', /^options.tensor is /, made({ tensor: ort.Tensor }))
  refused(t, 'INVALID_ARGUMENT', /^salt is a number \(not shown\)/, made({ salt: 5 }))
  refused(
    t,
    'INVALID_ARGUMENT',
    /layers, as the session has/,
    made({ cache: new PagedKvCache({ ...sizes, numLayers: 2 }) }),
  )
  refused(
    t,
    'INVALID_ARGUMENT',
    /16 elements per head in layer 0, as past_key_values.0.key has/,
    made({ cache: new PagedKvCache({ ...sizes, headDim: 8 }) }),
  )
  refused(t, 'INVALID_ARGUMENT', /2 heads in layer 0/, made({ cache: new PagedKvCache({ ...sizes, numKvHeads: 1 }) }))
  refused(
    t,
    'INVALID_ARGUMENT',
    /^cache.dtype is "f16", expected f32/,
    made({ cache: new PagedKvCache({ ...sizes, dtype: 'f16' }) }),
  )
  refused(
    t,
    'INVALID_ARGUMENT',
    /^names.pastKey is "past", expected a name with one %d/,
    made({ names: { pastKey: 'past' } }),
  )
  const names = { pastKey: 'p.%d.k', pastValue: 'p.%d.v', presentKey: 'q.%d.k', presentValue: 'q.%d.v' }
  refused(t, 'UNSUPPORTED_GRAPH', /expected names like p\.%d\.k/, made({ names }))
  const encoded = { inputNames: [...session.inputNames, 'encoder_hidden_states'], outputNames: session.outputNames }
  refused(
    t,
    'UNSUPPORTED_GRAPH',
    /at encoder_hidden_states \(input\): its purpose is not known/,
    made({ session: encoded }),
  )
  refused(
    t,
    'UNSUPPORTED_GRAPH',
    /at present\.2\.value \(output\)/,
    made({
      session: {
        inputNames: session.inputNames,
        outputNames: session.outputNames.filter(name => name !== 'present.2.value'),
      },
    }),
  )
  refused(
    t,
    'UNSUPPORTED_GRAPH',
    /at past_key_values\.1\.value \(input\): it is missing/,
    made({
      session: {
        inputNames: session.inputNames.filter(name => name !== 'past_key_values.1.value'),
        outputNames: session.outputNames,
      },
    }),
  )
  refused(
    t,
    'UNSUPPORTED_GRAPH',
    /at past_key_values\.1\.key \(input\): it is missing, but there is/,
    made({
      session: {
        inputNames: session.inputNames.filter(name => name !== 'past_key_values.1.key'),
        outputNames: session.outputNames,
      },
    }),
  )
  const typed = (name: string, type: string) => ({
    inputNames: session.inputNames,
    outputNames: session.outputNames,
    inputMetadata: [{ name, type, shape: ['batch', 2, 'past', 16] }],
  })
  refused(
    t,
    'UNSUPPORTED_GRAPH',
    /key \(input\): its type is bfloat16/,
    made({ session: typed('past_key_values.0.key', 'bfloat16') }),
  )
  refused(
    t,
    'UNSUPPORTED_GRAPH',
    /input_ids \(input\): its type is float32, expected int64 or int32/,
    made({ session: typed('input_ids', 'float32') }),
  )
  refused(
    t,
    'INVALID_ARGUMENT',
    /^cache.sinks is 1, expected no sinks/,
    made({
      cache: new PagedKvCache({
        model: {
          layers: Array.from({ length: 3 }, () => ({
            kind: 'sliding' as const,
            window: 9,
            sinks: 1,
            numKvHeads: 2,
            headDim: 16,
          })),
        },
        capacity: 8,
      }),
    }),
  )
  refused(t, 'INVALID_ARGUMENT', /^tokens.length is 0/, () => past.resume([]))
  refused(t, 'INVALID_ARGUMENT', /^tokens\[1\] is -1/, () => past.resume([1, -1]))
  refused(t, 'INVALID_ARGUMENT', /^outputs is an object, expected the outputs of a call/, () => past.commit({}))
  const { feeds } = past.resume([1, 2, 3])
  refused(t, 'INVALID_ARGUMENT', /present\.0\.key/, () => past.commit({}))
  const outputs = (await session.run(feeds)) as Record<string, ort.Tensor>
  refused(t, 'INVALID_ARGUMENT', /a prefix of the computed tokens/, () => past.commit(outputs, [1, 3]))
  refused(t, 'SHAPE_MISMATCH', /^present\.0\.key is \[1, 2, 1, 16\], expected \[1, 2, 3, 16\]/, () =>
    past.commit({ ...outputs, 'present.0.key': new ort.Tensor('float32', new Float32Array(32), [1, 2, 1, 16]) }),
  )
  t.is(past.length, 0)
  past.commit(outputs)
  t.is(past.length, 3)
  past.dispose()
  past.dispose()
  refused(t, 'DISPOSED', /OnnxPast/, () => past.resume([1]))
  refused(t, 'DISPOSED', /OnnxPast/, () => past.fork())
})

test('without room for its tokens a past is as it was', async t => {
  using cache = new PagedKvCache({ ...sizes, capacity: 2 })
  const session = await openSession('llama/onnx')
  const running = makes(session, cache)
  const expected = await greedy(running, short.slice(0, 20), 2)
  const error = await t.throwsAsync(step(running, long))
  t.true(isKvTideError(error) && error.code === 'OUT_OF_BLOCKS', String(error))
  t.is(running.past.length, 0)
  t.deepEqual(await greedy(running, short.slice(0, 20), 2), expected)
})
