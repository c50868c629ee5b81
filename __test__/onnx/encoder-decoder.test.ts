// Decoders with an encoder give the tokens of transformers: alone, together, forked, cut, drafted, preempted, saved and loaded. Their cross cache is computed once per
// encoding, and no sequence finds a prefix of another encoding.
import { readFileSync } from 'node:fs'

import { isKvTideError } from '../../index.js'
import { type Encoding, OnnxModel, type OnnxSequence } from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { read } from '../support/onnx/chat.js'
import { encodings, load, models, type Seq2Seq } from '../support/onnx/encoder-decoder.js'
import { rejected, throwsCode } from '../support/throws.js'

const MOST = 12
const LIMIT = 1e-4

/** All pairs of an input and a prompt. */
const pairs = ({ inputs, prompts }: Seq2Seq): [input: string, prompt: string][] =>
  inputs.flatMap(input => Object.keys(prompts).map(prompt => [input, prompt] as [string, string]))

const prompt = (of: Seq2Seq, name: string): number[] => [...(of.prompts[name] as readonly number[])]

/** Each model with each backend that runs it. */
const ways = models.flatMap(of => of.backends.map(backend => ({ of, backend })))

for (const { of, backend } of ways) {
  test(`${of.name} on ${backend}: logits are those of transformers, and a second question about the same input computes neither encoder nor cross cache`, async t => {
    await using model = await load(of, { backend })
    for (const [round, [input, name]] of pairs(of).entries()) {
      const encoded = await model.encode(of.inputsOf(input))
      t.is(encoded.frames, of.tensor(`encoded.${input}`).shape[1] as number)
      using sequence = model.open({ tokens: prompt(of, name), encoded, salt: `${round}` })
      const [logits] = await model.run([{ sequence }], { logits: 'all' })
      const far = distance(logits as Float32Array, of.tensor(`logits.${input}.${name}`).data)
      t.true(far < LIMIT, `${input} ${name}: ${far}`)
    }
    const { inputs } = of
    t.like(model.crossCache, { encodings: inputs.length, computed: inputs.length, encoderRuns: inputs.length })
    t.deepEqual(model.cache.stats().hitTokens, 0)
  })

  test(`${of.name} on ${backend}: tokens are those of transformers, all at once, again over cached prefixes, and with drafts`, async t => {
    for (const draft of [undefined, 'lookup'] as const) {
      await using model = await load(of, { backend })
      const encoded = await encodings(model, of)
      for (const round of ['first', 'again']) {
        const opened = pairs(of).map(([input, name]) =>
          model.open({ tokens: prompt(of, name), encoded: encoded.get(input) as Encoding }),
        )
        t.is(
          opened.some(sequence => sequence.length > 0),
          round === 'again',
        )
        // The greedy tokens of transformers go on behind the end of a sequence.
        const options = { ignoreEndOfSequence: true, ...(draft === undefined ? {} : { draft }) }
        const found = await Promise.all(opened.map(one => read(model, one, MOST, options)))
        t.deepEqual(
          found,
          pairs(of).map(([input, name]) => of.greedy(input, name)),
          `${draft}, ${round}`,
        )
        for (const sequence of opened) sequence.dispose()
      }
      t.is(model.crossCache?.computed, of.inputs.length)
    }
  })

  test(`${of.name} on ${backend}: forks, cuts, snapshots and beams give the tokens of a sequence alone`, async t => {
    await using model = await load(of, { backend })
    const [encoded] = (await encodings(model, of)).values()
    const ids = prompt(of, 'p4')
    const greedy = of.greedy('a', 'p4')
    const alone = async (tokens: readonly number[], count: number): Promise<number[]> => {
      using own = model.open({ tokens: [...tokens], encoded: encoded as Encoding, salt: tokens.join() })
      return await read(model, own, count)
    }
    using sequence = model.open({ tokens: ids, encoded: encoded as Encoding })
    t.deepEqual(await read(model, sequence, 5), greedy.slice(0, 5))
    // Beams: forks that go on with other tokens, in shared steps.
    const beams = [5, 17, 40].map(token => ({ fork: sequence.fork(), token }))
    const found = await Promise.all(beams.map(({ fork, token }) => read(model, fork, 4, { tokens: [token] })))
    for (const [place, { token }] of beams.entries())
      t.deepEqual(found[place], await alone([...ids, ...greedy.slice(0, 5), token], 4), `beam ${token}`)
    const snapshot = sequence.snapshot()
    sequence.truncate(ids.length + 2)
    t.deepEqual(await read(model, sequence, MOST - 2), greedy.slice(2))
    sequence.restore(snapshot)
    t.deepEqual(await read(model, sequence, MOST - 5), greedy.slice(5))
    const other = [...ids.slice(0, 3), 9, 9, 9]
    t.true(sequence.resume(other) >= 3)
    t.deepEqual(await read(model, sequence, 4), await alone(other, 4))
    {
      using draft = sequence.begin()
      await read(model, sequence, 2, { tokens: [7] })
      draft.rollback()
    }
    t.is(model.crossCache?.computed, 1)
    for (const { fork } of beams) fork.dispose()
    model.cache.checkInvariants()
  })

  test(`${of.name} on ${backend}: preempted in a small cache, and with a cross cache without room, the tokens are the same`, async t => {
    for (const options of [{ cache: { capacity: 14 } }, { crossCacheBytes: 0 }]) {
      await using model = await OnnxModel.load(of.file, {
        threads: 1,
        backend,
        ...options,
        cache: { blockSize: 4, capacity: 200, ...options.cache },
      })
      const encoded = await encodings(model, of)
      const found = await Promise.all(
        pairs(of).map(async ([input, name]) => {
          using own = model.open({ tokens: prompt(of, name), encoded: encoded.get(input) as Encoding })
          return await read(model, own, MOST)
        }),
      )
      t.deepEqual(
        found,
        pairs(of).map(([input, name]) => of.greedy(input, name)),
      )
      const { computed, bytes } = model.crossCache as { computed: number; bytes: number }
      if (options.crossCacheBytes === 0) {
        t.true(computed > of.inputs.length)
        t.is(bytes, 0)
      } else t.is(computed, of.inputs.length)
    }
  })

  test(`${of.name} on ${backend}: no prefix is found for another encoding, and the same states are the same encoding`, async t => {
    await using model = await load(of, { backend })
    const [a, b] = [...(await encodings(model, of)).values()] as [Encoding, Encoding]
    const tokens = prompt(of, 'p17')
    using first = model.open({ tokens, encoded: a })
    await read(model, first, 1)
    using same = model.open({ tokens, encoded: a })
    t.is(same.length, 16)
    using other = model.open({ tokens, encoded: b })
    t.is(other.length, 0)
    t.not(a.key, b.key)
    t.is(await model.encode(of.inputsOf('a')), a)
    const { data, shape } = of.tensor('encoded.a')
    const states = (change: (row: Float32Array) => void): Float32Array => {
      const copy = data.slice()
      change(copy)
      return copy
    }
    // A snapshot of a sequence of another encoding has other keys and values.
    const snapshot = first.snapshot()
    const error = t.throws(() => other.restore(snapshot))
    t.true(isKvTideError(error) && error.code === 'SNAPSHOT_INVALID', String(error))
    t.is(other.length, 0)
    same.restore(snapshot)
    if (of.isGiven) {
      const open = (): unknown => model.open({ tokens, encoded: { data, dims: shape } })
      t.regex(throwsCode(t, 'INVALID_ARGUMENT', open).message, /expected the result of encode\(inputs\)/)
      return
    }
    using given = model.open({ tokens, encoded: { data, dims: shape } })
    using flat = model.open({ tokens, encoded: { data, dims: shape.slice(1) } })
    t.deepEqual(
      await Promise.all([read(model, given, 3), read(model, flat, 3)]),
      [3, 3].map(count => of.greedy('a', 'p17').slice(0, count)),
    )
    using again = model.open({ tokens, encoded: { data, dims: shape } })
    t.is(again.length, 16)
    using changed = model.open({ tokens, encoded: { data: states(row => (row[3] = 0)), dims: shape } })
    t.is(changed.length, 0)
  })

  test(`${of.name} on ${backend}: a saved sequence goes on in another model, with the same encoding only`, async t => {
    await using model = await load(of, { backend })
    const [a, b] = [...(await encodings(model, of)).values()] as [Encoding, Encoding]
    using sequence = model.open({ tokens: prompt(of, 'p4'), encoded: a })
    await read(model, sequence, 6)
    const bytes = await sequence.saveBytes()
    await using next = await load(of, { backend })
    const [own] = (await encodings(next, of)).values()
    using loaded = await next.loadSequence(bytes, { encoded: own as Encoding })
    t.deepEqual(await read(next, loaded, MOST - 6), of.greedy('a', 'p4').slice(6))
    await rejected(next.loadSequence(bytes), 'INVALID_ARGUMENT')
    await rejected(next.loadSequence(bytes, { encoded: b }), 'INCOMPATIBLE')
    const { sequence: admitted } = next.admit(prompt(of, 'p17'), { encoded: own as Encoding, answerTokens: MOST })
    t.deepEqual(await read(next, admitted as OnnxSequence, MOST), of.greedy('a', 'p17'))
    admitted?.dispose()
  })
}

const whisper = models[models.findIndex(({ name }) => name === 'whisper')] as Seq2Seq
const t5 = models[models.findIndex(({ name }) => name === 't5')] as Seq2Seq

/** An input of a node, in the bytes of the graph. */
const name = (node: number): string => `\n#/model/decoder/Unsqueeze_${node}_output_0`

test('a graph that loses the causal mask behind a past gets one token at a time there, and drafts nothing', async t => {
  const bytes = readFileSync(whisper.file)
  // The last of the two branches is the one with a past: its mask compares positions with themselves.
  const at = bytes.lastIndexOf(Buffer.from(name(8) + name(5)))
  t.true(at > 0)
  bytes.write(name(8) + name(8), at)
  const encoder = readFileSync(whisper.file.replace('decoder_model_merged', 'encoder_model'))
  await using model = await OnnxModel.load(bytes, {
    threads: 1,
    backend: 'plain',
    encoder,
    cache: { capacity: 200, blockSize: 4 },
  })
  const encoded = await encodings(model, whisper)
  for (const round of [0, 1, 2]) {
    const found = await Promise.all(
      pairs(whisper).map(async ([input, one]) => {
        // In the last round nothing but the cross cache is found.
        using own = model.open({
          tokens: prompt(whisper, one),
          encoded: encoded.get(input) as Encoding,
          salt: round < 2 ? '' : one,
        })
        return await read(model, own, MOST, { draft: 'lookup' })
      }),
    )
    t.deepEqual(
      found,
      pairs(whisper).map(([input, one]) => whisper.greedy(input, one)),
    )
  }
  using all = model.open({ tokens: prompt(whisper, 'p17'), encoded: encoded.get('b') as Encoding, salt: 'all' })
  const [logits] = await model.run([{ sequence: all }], { logits: 'all' })
  t.true(distance(logits as Float32Array, whisper.tensor('logits.b.p17').data) < LIMIT)
  t.is(model.crossCache?.computed, 2)
})

test('the encoder runs once for the same inputs, also if they are asked for at once', async t => {
  await using model = await load(t5)
  const asked = await Promise.all([1, 2, 3].map(() => model.encode(t5.inputsOf('a'))))
  t.is(new Set(asked).size, 1)
  t.is(model.crossCache?.encoderRuns, 1)
  // Without a mask, all tokens count; ids may be 64-bit integers of a tokenizer.
  const ids = t5.inputsOf('a')['input_ids'] as number[]
  const tensor = { type: 'int64', data: BigInt64Array.from(ids, BigInt), dims: [1, ids.length] }
  t.is((await model.encode({ input_ids: tensor })).key, (asked[0] as Encoding).key)
  t.is(model.crossCache?.encoderRuns, 1)
})
