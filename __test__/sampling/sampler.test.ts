// Tokens drawn from rows of logits: at once and in the background, row by row, with drafts and masks.
import test from 'ava'

import { isKvTideError } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { readSamplingOptions, type SamplingOptions } from '../../lib/sampling/options.js'
import { drawTokens, type DrawnTokens, type RowToDraw, Sampler } from '../../lib/sampling/sampler.js'
import { throwsCode } from '../support/throws.js'

const sampler = (options: SamplingOptions, prompt: number[] = []): Sampler =>
  Sampler.of(readSamplingOptions('options', options), Uint32Array.from(prompt))
const logitsOf = (...rows: number[][]) =>
  new binding.NativeLogits(Float32Array.from(rows.flat()), 'f32', rows.length, rows[0]?.length ?? 0)

async function one(row: RowToDraw): Promise<DrawnTokens> {
  const [drawn] = await drawTokens([row])
  return drawn as DrawnTokens
}

function codeOf({ error }: DrawnTokens): unknown {
  return isKvTideError(error) ? error.code : error
}

test('each row has its own options', async t => {
  const logits = logitsOf([0, 3, 2, 1], [4, 0, 1, 5])
  const drawn = await drawTokens([
    { sampler: sampler({}), logits, row: 0 },
    { sampler: sampler({}), logits, row: 1 },
    { sampler: sampler({ repetitionPenalty: 3 }, [3]), logits, row: 1 },
    { sampler: sampler({ bias: { 1: -Infinity } }), logits, row: 0 },
    { sampler: sampler({ bias: new Map([[0, 9]]), logprobs: 0 }), logits, row: 0 },
  ])
  t.deepEqual(
    drawn.map(row => row.tokens?.[0]),
    [1, 3, 0, 2, 0],
  )
  t.deepEqual(
    drawn.map(row => row.error === undefined && row.logprobs?.length),
    [undefined, undefined, undefined, undefined, 1],
  )
})

test('log-probabilities are those of the row, the most probable first', async t => {
  const drawn = await one({
    sampler: sampler({ logprobs: 2 }),
    logits: logitsOf([Math.log(1), Math.log(5), Math.log(4), -Infinity]),
    row: 0,
  })
  const [found] = drawn.error === undefined ? (drawn.logprobs ?? []) : []
  t.is(found?.token, 1)
  t.true(Math.abs((found?.logprob ?? 0) - Math.log(0.5)) < 1e-6)
  t.deepEqual(
    found?.top.map(({ token }) => token),
    [1, 2],
  )
  t.true(Math.abs((found?.top[1]?.logprob ?? 0) - Math.log(0.4)) < 1e-6)
})

test('to draw changes nothing, and what is pushed counts', async t => {
  const logits = logitsOf([1, 1.1, 1.2])
  const chosen = sampler({ frequencyPenalty: 0.15 }, [5, 6])
  const next = async () => (await one({ sampler: chosen, logits, row: 0 })).tokens?.[0]
  t.deepEqual([await next(), await next(), chosen.position], [2, 2, 2])
  chosen.push([2])
  t.deepEqual([await next(), chosen.position], [1, 3])
  const fork = chosen.fork()
  fork.push([1])
  t.deepEqual([fork.position, chosen.position], [4, 3])
  chosen.truncate(2)
  t.is(await next(), 2)
  throwsCode(t, 'INVALID_ARGUMENT', () => chosen.truncate(1))
  throwsCode(t, 'INVALID_ARGUMENT', () => chosen.truncate(3))
  chosen.dispose()
  t.is(codeOf(await one({ sampler: chosen, logits, row: 0 })), 'DISPOSED')
  t.is((await one({ sampler: fork, logits, row: 0 })).tokens?.[0], 2)
})

test('a row that is refused does not fail the others', async t => {
  const logits = logitsOf([1, 2], [NaN, 1], [-Infinity, -Infinity], [3, 2])
  const thrown = new Error('no grammar')
  const refuses = () => {
    throw thrown
  }
  const options: SamplingOptions[] = [
    {},
    {},
    {},
    {},
    { allowed: refuses },
    { allowed: () => [] },
    { bias: { 2: 1 } },
    { allowed: () => [2] },
  ]
  const drawn = await drawTokens(
    options.map((each, place) => ({ sampler: sampler(each), logits, row: Math.min(place, 3) })),
  )
  t.deepEqual(
    drawn.map(row => row.tokens ?? codeOf(row)),
    [[1], 'NOT_FINITE', 'NOT_FINITE', [0], thrown, 'INVALID_ARGUMENT', 'INVALID_ARGUMENT', 'INVALID_ARGUMENT'],
  )
  t.deepEqual(
    drawn.slice(1, 3).map(row => isKvTideError(row.error) && row.error.details),
    [{ row: 1 }, { row: 2 }],
  )
  for (const row of [4, -1, 0.5]) t.is(codeOf(await one({ sampler: sampler({}), logits, row })), 'INVALID_ARGUMENT')
  t.is(codeOf(await one({ sampler: sampler({}), logits, row: 3, drafted: [0] })), 'INVALID_ARGUMENT')
  t.is(codeOf(await one({ sampler: sampler({}), logits: logitsOf([]), row: 0 })), 'INVALID_ARGUMENT')
})

test('an allowed token is an id, or a bit', async t => {
  const logits = logitsOf(Array.from({ length: 70 }, (_, id) => id))
  const mask = new Uint32Array(3)
  mask[1] = 1 << 5
  const drawn = async (allowed: NonNullable<SamplingOptions['allowed']>) =>
    (await one({ sampler: sampler({ allowed }), logits, row: 0 })).tokens?.[0]
  t.is(await drawn(() => [3, 40, 5]), 40)
  t.is(await drawn(() => new Set([33, 2])), 33)
  t.is(await drawn(() => mask), 37)
  t.is(await drawn(() => undefined), 69)
  for (const wrong of [5, '12', [70], [-1], new Uint32Array(2), null]) {
    const allowed = (() => wrong) as unknown as NonNullable<SamplingOptions['allowed']>
    t.is(codeOf(await one({ sampler: sampler({ allowed }), logits, row: 0 })), 'INVALID_ARGUMENT', String(wrong))
  }
})

test('a grammar is asked with what was generated, and with drafts while they are allowed', async t => {
  const logits = logitsOf([0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 9, 0], [0, 0, 0, 9])
  const asked: number[][] = []
  const chosen = sampler({
    allowed: tokens => {
      asked.push([...tokens])
      return [1, 2]
    },
  })
  chosen.push([2])
  t.deepEqual((await one({ sampler: chosen, logits, row: 0, drafted: [1, 3, 2] })).tokens, [1, 2])
  t.deepEqual(asked, [[2], [2, 1]])
})

test('given drafts stay as long as they are what would have been drawn', async t => {
  const logits = logitsOf([0, 9, 0], [9, 0, 0], [0, 0, 9])
  const tokens = async (drafted: number[]) => (await one({ sampler: sampler({}), logits, row: 0, drafted })).tokens
  t.deepEqual(
    [await tokens([1, 0]), await tokens([1, 2]), await tokens([0, 0]), await tokens([])],
    [[1, 0, 2], [1, 0], [1], [1]],
  )
})

test('drafts of a second model stay, or make room for what it says too seldom', async t => {
  const [model, second] = [logitsOf([1, 2, 0.5], [0.5, 1, 2]), logitsOf([2, 1, 0.5])]
  const counts = [0, 0, 0]
  const draws = 3000
  for (let seed = 0; seed < draws; seed++) {
    const chosen = sampler({ seed })
    const drafted = (await one({ sampler: chosen.drafter(), logits: second, row: 0 })).tokens ?? []
    const drawn = await one({ sampler: chosen, logits: model, row: 0, drafted, drafts: [{ logits: second, row: 0 }] })
    counts[drawn.tokens?.[0] ?? -1]! += 1
  }
  const weights = [1, 2, 0.5].map(Math.exp)
  const sum = weights.reduce((all, weight) => all + weight)
  const distance = counts.reduce(
    (all, found, token) =>
      all + (found - (draws * (weights[token] as number)) / sum) ** 2 / ((draws * (weights[token] as number)) / sum),
    0,
  )
  t.true(distance < 14, `${counts.join(' ')} is ${distance} away`)
  t.is(
    codeOf(
      await one({
        sampler: sampler({ seed: 1 }),
        logits: model,
        row: 0,
        drafted: [0],
        drafts: [{ logits: second, row: 1 }],
      }),
    ),
    'INVALID_ARGUMENT',
  )
  t.is(codeOf(await one({ sampler: sampler({ seed: 1 }), logits: model, row: 0, drafted: [0], drafts: [] })), undefined)
})

test('large rows are drawn in the background, with the tokens of those drawn at once', async t => {
  const [rows, vocabulary] = [12, 40_000]
  const values = Float32Array.from(
    { length: rows * vocabulary },
    (_, place) => ((place * 2_654_435_761) % 4_294_967_296) / 4e8,
  )
  const logits = new binding.NativeLogits(values, 'f32', rows, vocabulary)
  const all = Array.from({ length: rows }, (_, row): RowToDraw => ({
    sampler: sampler({ seed: row, topP: 0.9, logprobs: 2 }),
    logits,
    row,
  }))
  let isSettled = false
  const drawing = drawTokens(all).then(drawn => {
    isSettled = true
    return drawn
  })
  await Promise.resolve()
  t.false(isSettled)
  // Nothing that is read is held: it may be changed and disposed of.
  const before = all.map(({ sampler: each }) => each.fork())
  for (const { sampler: each } of all) {
    each.push([1])
    each.dispose()
  }
  const copies = all.map(
    ({ row }) =>
      new binding.NativeLogits(values.subarray(row * vocabulary, (row + 1) * vocabulary), 'f32', 1, vocabulary),
  )
  logits.dispose()
  const drawn = await drawing
  for (const [place, found] of drawn.entries()) {
    const draw = new binding.NativeDraw()
    draw.add((before[place] as Sampler).native, copies[place] as InstanceType<typeof binding.NativeLogits>, 0)
    t.deepEqual(found.tokens, draw.run()[0]?.tokens)
  }
  t.true(new Set(drawn.map(({ tokens }) => tokens?.[0])).size > 3)
})

test('what is drawn is drawn once', async t => {
  const draw = new binding.NativeDraw()
  throwsCode(t, 'INVALID_ARGUMENT', () => draw.allow(new Uint32Array(1)))
  draw.add(sampler({}).native, logitsOf([1, 2]), 0)
  t.is((await draw.start()).length, 1)
  t.deepEqual(draw.run(), [])
})
