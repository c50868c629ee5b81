// Models with other rotary factors for long sequences: each sequence has the numbers of its own length, and no prefix is shared across the threshold.
import test from 'ava'

import { OnnxModel, type OnnxSequence } from '../../onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { read } from '../support/onnx/chat.js'
import { graphFile, referenceOf } from '../support/onnx/graphs.js'
import { alone, Dice, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import { rejected, throwsCode } from '../support/throws.js'

const THRESHOLD = 12
const says = (tokens: readonly number[], count: number): number[] => alone(tokens, count, Infinity, Infinity, THRESHOLD)
const toy = (): OnnxModel =>
  toyModel(new ToyBackend(new Dice(1), { poison: -1 }), { capacity: 64, threshold: THRESHOLD })
const ids = (count: number): number[] => Array.from({ length: count }, (_, place) => (place * 5) % 13)

test('a sequence that grows beyond the threshold, or is cut below it, has the numbers of its length', async t => {
  await using model = toy()
  using chat = model.open({ tokens: ids(8) })
  const all = ids(8)
  for (const count of [3, 5, 4]) {
    const wanted = says(all, count)
    t.deepEqual(await read(model, chat, count), wanted)
    all.push(...wanted)
  }
  chat.truncate(9)
  t.deepEqual(await read(model, chat, 2), says(all.slice(0, 9), 2))
  t.is(chat.resume(ids(20)), 0, 'nothing of a short one is kept')
  t.deepEqual(await read(model, chat, 2), says(ids(20), 2))
})

test('prefixes are found by sequences of the same side only', async t => {
  await using model = toy()
  const opened = async (count: number): Promise<number> => {
    using chat = model.open({ tokens: ids(count) })
    const { length } = chat
    t.deepEqual(await read(model, chat, 1), says(ids(count), 1), `${count}`)
    return length
  }
  t.is(await opened(11), 0)
  t.is(await opened(10), 8)
  t.is(await opened(20), 0)
  t.is(await opened(18), 16)
  const { sequence } = model.admit(ids(17)) as { sequence: OnnxSequence }
  t.is(sequence.length, 16)
  t.deepEqual(await read(model, sequence, 2), says(ids(17), 2))
  sequence.dispose()
  t.is(await opened(12), 8)
})

test('arrays of salts and extras may be used again for another tenant', async t => {
  await using model = toy()
  const [salt, key] = [Uint8Array.of(1), Uint8Array.of(1)]
  using chat = model.open({ tokens: ids(8), salt, extra: [{ start: 0, end: 1, key }] })
  ;[salt[0], key[0]] = [2, 2]
  // It gets names of its own beyond the threshold, under the salt and the extras that it was opened with.
  await read(model, chat, 8)
  const long = [...chat.tokens, 1]
  const opened = (byte: number): number => {
    const given = { salt: Uint8Array.of(byte), extra: [{ start: 0, end: 1, key: Uint8Array.of(byte) }] }
    using other = model.open({ tokens: long, ...given })
    return other.length
  }
  t.true(opened(1) > 0)
  t.is(opened(2), 0)
})

test('snapshots, forks and files have the numbers of their length', async t => {
  await using model = toy()
  using chat = model.open({ tokens: ids(10) })
  await model.run([{ sequence: chat }])
  using short = chat.snapshot()
  const more = await read(model, chat, 6)
  using long = chat.snapshot()
  const bytes = await chat.saveBytes()
  const whole = [...ids(10), ...more]
  for (const [snapshot, tokens] of [
    [short, ids(10)],
    [long, whole],
    [short, ids(10)],
  ] as const) {
    chat.restore(snapshot)
    t.deepEqual([...chat.tokens], tokens)
    t.true(chat.length >= tokens.length - 1)
    using fork = chat.fork()
    t.deepEqual(await read(model, fork, 5), says(tokens, 5))
  }
  using loaded = await model.loadSequence(bytes)
  t.is(loaded.length, whole.length - 1)
  t.deepEqual(await read(model, loaded, 3), says(whole, 3))
  // Rows of a long sequence are not saved for what was cut to a short one.
  loaded.truncate(6)
  using cut = await model.loadSequence(await loaded.saveBytes())
  t.deepEqual([cut.length, [...cut.tokens]], [0, whole.slice(0, 6)])
  t.deepEqual(await read(model, cut, 3), says(whole.slice(0, 6), 3))
})

test('a refused restore leaves a sequence as it was', async t => {
  await using model = toy()
  await using other = toy()
  using long = model.open({ tokens: ids(20), salt: 'another' })
  using foreign = other.open({ tokens: ids(20) })
  await model.run([{ sequence: long }])
  await other.run([{ sequence: foreign }])
  using chat = model.open({ tokens: ids(6) })
  await model.run([{ sequence: chat }])
  const look = (): unknown => [chat.length, [...chat.tokens]]
  const before = look()
  throwsCode(t, 'SNAPSHOT_INVALID', () => chat.restore(long.snapshot()))
  throwsCode(t, 'SNAPSHOT_INVALID', () => chat.restore(foreign.snapshot()))
  const gone = long.snapshot()
  gone.dispose()
  throwsCode(t, 'DISPOSED', () => chat.restore(gone))
  const draft = chat.begin()
  throwsCode(t, 'TRANSACTION_OPEN', () => chat.restore(long.snapshot()))
  draft.rollback()
  t.deepEqual(look(), before)
  t.deepEqual(await read(model, chat, 4), says(ids(6), 4))
})

test('the threshold is not crossed in a transaction', async t => {
  await using model = toy()
  using chat = model.open({ tokens: ids(8) })
  await model.run([{ sequence: chat }])
  const draft = chat.begin()
  await rejected(model.run([{ sequence: chat, tokens: ids(5) }]), 'TRANSACTION_OPEN')
  t.deepEqual([chat.length, [...chat.tokens]], [8, ids(8)])
  const { message } = await rejected(read(model, chat, 6, { tokens: [3] }), 'TRANSACTION_OPEN')
  t.true(message.includes(`beyond ${THRESHOLD} tokens`), message)
  draft.rollback()
  t.deepEqual([chat.length, [...chat.tokens]], [8, ids(8)])
  t.deepEqual(await read(model, chat, 6), says(ids(8), 6))
})

for (const backend of ['graph', 'parts', 'plain'] as const)
  onnxTest(`${backend}: a short prompt finds nothing of a long one`, async t => {
    const cache = { memoryBytes: 2 ** 23, blockSize: 4 }
    await using model = await OnnxModel.load(graphFile('families/phi3-long/builder'), { backend, threads: 1, cache })
    const { prompts, greedy } = referenceOf('families/phi3-long')
    // Its first tokens are computed in one call with the rest of the long prompt.
    const long = prompts['p100'] as number[]
    const answered = async (tokens: readonly number[], salt?: string): Promise<number[]> => {
      using chat = model.open({ tokens, ...(salt === undefined ? {} : { salt }) })
      return await read(model, chat, 6)
    }
    t.deepEqual(await answered(long), greedy['p100']?.slice(0, 6))
    t.deepEqual(await answered(long.slice(0, 9)), await answered(long.slice(0, 9), 'alone'))
  })
