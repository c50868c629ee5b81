// Prompts that start alike and arrive together: each block is computed once, and every chat gets what it gets alone.
import test, { type ExecutionContext } from 'ava'

import { sharesOf } from '../../lib/onnx/policy.js'
import { OnnxModel } from '../../onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { linearGraph, linearGreedy } from '../support/onnx/linear-graph.js'
import { used } from '../support/onnx/ledger.js'
import { FIRST_SEED } from '../support/onnx/schedules.js'
import { aloneOf, Dice, POISON, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import { TOY_STATES } from '../support/onnx/toy-states.js'

const BLOCK = 4

/** Prompts of a few families, which leave each other at any token. */
function prompts(dice: Dice): { tokens: number[]; salt: string }[] {
  const trunk = Array.from({ length: 60 }, () => dice.roll(POISON))
  return Array.from({ length: 2 + dice.roll(8) }, () => {
    const [shared, own] = [dice.roll(60), dice.roll(20)]
    const tokens = [...trunk.slice(0, shared), ...Array.from({ length: own }, () => dice.roll(POISON))]
    return { tokens: tokens.length === 0 ? [1] : tokens, salt: dice.once(4) ? 'other' : 'one' }
  })
}

/** The tokens of whole blocks that a prompt has in common with one before it. Its last token is always computed. */
function found(all: ReturnType<typeof prompts>, place: number): number {
  const { tokens, salt } = all[place] as (typeof all)[number]
  const lengths = all.slice(0, place).map(other => {
    if (other.salt !== salt) return 0
    let common = 0
    while (common < Math.min(tokens.length, other.tokens.length) && tokens[common] === other.tokens[common]) common += 1
    return Math.floor(Math.min(common, tokens.length - 1) / BLOCK) * BLOCK
  })
  return Math.max(0, ...lengths)
}

/** Chats that start together. Returns what each of them has found. */
async function together(
  t: ExecutionContext,
  model: OnnxModel,
  all: ReturnType<typeof prompts>,
  alone: (tokens: readonly number[], count: number) => number[],
  name: string,
): Promise<number[]> {
  const chats = all.map(prompt => model.open(prompt))
  const answers = await Promise.all(
    chats.map(chat => used(model.generate(chat, { maxTokens: 3 })).finally(() => chat.dispose())),
  )
  for (const [place, { tokens }] of answers.entries())
    t.deepEqual(tokens, alone(all[place]?.tokens ?? [], 3), `${name}, ${place}`)
  return answers.map(({ usage }) => usage.cachedTokens)
}

for (const [what, form] of [
  ['full layers', {}],
  ['a window', { window: 9 }],
  ...TOY_STATES.map(states => [`states ${states}`, { states }] as const),
] as const) {
  test(`${what}: each block of prompts that start together is computed once`, async t => {
    let total = 0
    for (let seed = FIRST_SEED; seed < FIRST_SEED + 150 && t.passed; seed++) {
      const dice = new Dice(seed)
      const all = prompts(dice)
      const model = toyModel(new ToyBackend(dice, { ...form, poison: -1 }), {
        capacity: 400,
        stepTokens: 12 + dice.roll(60),
        ...form,
      })
      const wanted = all.map((_, place) => found(all, place))
      t.deepEqual(await together(t, model, all, aloneOf(form), `seed ${seed}`), wanted, `seed ${seed}`)
      total += wanted.reduce((sum, length) => sum + length, 0)
      model.cache.forgetPrefixes()
      t.is(model.cache.freeCount, model.cache.totalCount)
      await model.dispose()
    }
    t.true(total > 2500, `${total}`)
  })
}

test('with a window and in a crowd, chats that start together get what they get alone', async t => {
  for (let seed = FIRST_SEED; seed < FIRST_SEED + 200 && t.passed; seed++) {
    const dice = new Dice(seed)
    const window = dice.once(2) ? 1 + dice.roll(20) : undefined
    const all = prompts(dice)
    const form = window === undefined ? {} : { window }
    const model = toyModel(new ToyBackend(dice, { ...form, poison: -1 }), {
      capacity: 24 + dice.roll(40),
      stepTokens: 8 + dice.roll(20),
      sequences: 1 + dice.roll(8),
      ...form,
    })
    await together(t, model, all, aloneOf(form), `seed ${seed}`)
    model.cache.checkInvariants()
    await model.dispose()
  }
})

test('the one that others wait for may fail, end, or be left', async t => {
  const start = Array.from({ length: 40 }, (_, place) => place % 7)
  for (const how of ['fails', 'is left', 'is disposed of'] as const) {
    const backend = new ToyBackend(new Dice(3))
    const model = toyModel(backend, { capacity: 200, stepTokens: 8 })
    const first = model.open({ tokens: [...start, ...(how === 'fails' ? [POISON] : [1])] })
    const second = model.open({ tokens: [...start, 2] })
    const leading = model.generate(first, { maxTokens: 2 })
    const ahead = leading.next().catch((error: unknown) => error)
    const following = used(model.generate(second, { maxTokens: 2 }))
    if (how !== 'fails') {
      while (backend.steps < 2) await new Promise(resolve => setImmediate(resolve))
      if (how === 'is left') await leading.return()
      else first.dispose()
    }
    await ahead
    const { tokens, usage } = await following
    t.deepEqual(tokens, aloneOf({})([...start, 2], 2), how)
    t.true(usage.cachedTokens > 0 && usage.cachedTokens <= 40, `${how}: ${usage.cachedTokens}`)
    for (const chat of [first, second]) chat.dispose()
    await model.dispose()
  }
})

const candidate = (pending: number, isWaiting: boolean) => ({
  pending,
  isWaiting,
  isAdmitted: true,
  isHolding: true,
  drafts: 0,
  nextCut: undefined,
})

test('a candidate that waits has no share of a step', t => {
  t.deepEqual(sharesOf([candidate(9, false), candidate(8, true), candidate(1, true), candidate(7, false)], 14), [
    { place: 2, tokens: 1, drafts: 0 },
    { place: 0, tokens: 9, drafts: 0 },
    { place: 3, tokens: 4, drafts: 0 },
  ])
})

for (const backend of ['graph', 'parts', 'plain'] as const) {
  onnxTest(`${backend}: a hybrid computes a common start once`, async t => {
    await using model = await OnnxModel.load(linearGraph(), {
      backend,
      threads: 1,
      maxStepTokens: 24,
      cache: { capacity: 200, blockSize: BLOCK },
    })
    const start = Array.from({ length: 50 }, (_, place) => (place * 3) % 11)
    const all = [[1, 2], [3], [1, 2, 4], [5, 6, 7]].map(own => ({ tokens: [...start, ...own], salt: 'one' }))
    t.deepEqual(await together(t, model, all, linearGreedy, backend), [0, 48, 52, 48])
  })
}
