// The steps of a scheduler that keeps states: they end at each position where a checkpoint is wanted, whatever else they contain. The options that name positions.
import test from 'ava'

import { type ErrorCode, isKvTideError } from '../../index.js'
import type { ModelStep } from '../../lib/onnx/backend.js'
import { Cuts } from '../../lib/onnx/cuts.js'
import type { OnnxModel, OnnxSequence } from '../../onnx.js'
import { groupsOf } from '../support/onnx/state-groups.js'
import { alone, Dice, ToyBackend, toyModel, VOCABULARY } from '../support/onnx/toy-model.js'

const BLOCK = 4

/** Notes the positions at which the steps of each sequence end. */
class NotedSteps extends ToyBackend {
  readonly ends: { readonly id: number; readonly end: number; readonly tokens: number }[] = []
  longest = 0

  override async run(step: ModelStep): ReturnType<ToyBackend['run']> {
    const logits = await super.run(step)
    for (const [place, { sequence, before }] of step.sequences.entries()) {
      const tokens = (step.offsets[place + 1] as number) - (step.offsets[place] as number)
      this.ends.push({ id: sequence.id, end: before.length + tokens, tokens })
    }
    this.longest = Math.max(this.longest, step.ids.length)
    return logits
  }

  /** The ends of a sequence's steps of more than one token. */
  of({ id }: OnnxSequence): number[] {
    return this.ends.filter(noted => noted.id === id && noted.tokens > 1).map(({ end }) => end)
  }
}

function modelOf(kind: string, stepTokens = 100, seed = 1): { model: OnnxModel; steps: NotedSteps } {
  const steps = new NotedSteps(new Dice(seed))
  const cuts = new Cuts(groupsOf(kind, 64, BLOCK))
  return { model: toyModel(steps, { capacity: 400, blockSize: BLOCK, stepTokens, cuts }), steps }
}

const tokensOf = (dice: Dice, length: number): number[] => Array.from({ length }, () => dice.roll(VOCABULARY - 1))

async function take(model: OnnxModel, sequence: OnnxSequence, count: number, rest: object = {}): Promise<number[]> {
  const taken: number[] = []
  for await (const token of model.generate(sequence, { maxTokens: count, ...rest })) taken.push(token)
  return taken
}

test('steps end at the last whole block, at saltFrom and at named positions; without states, only at the end', async t => {
  const tokens = tokensOf(new Dice(3), 150)
  for (const [kind, ends] of [
    ['state', [12, 20, 28, 148, 150]],
    ['full', [150]],
  ] as const) {
    const { model, steps } = modelOf(kind, 200)
    await using _ = model
    using sequence = model.open({ tokens, salt: 'tenant', saltFrom: 14, checkpoints: [20, 31] })
    t.deepEqual(await take(model, sequence, 5), alone(tokens, 5))
    t.deepEqual(steps.of(sequence), ends)
  }
})

test('a turn ends no step early until more than 128 tokens were computed behind a block that prompts find', async t => {
  const { model, steps } = modelOf('state', 200)
  await using _ = model
  using chat = model.open()
  const dice = new Dice(8)
  const all: number[] = []
  const turn = async (length: number): Promise<void> => {
    const tokens = tokensOf(dice, length)
    all.push(...tokens)
    t.deepEqual(await take(model, chat, 1, { tokens }), alone(all, 1))
    chat.truncate(all.length)
  }
  for (const length of [128, 100, 30]) await turn(length)
  t.deepEqual(steps.of(chat), [128, 228, 258])
  // Prompts find nothing of it now, so each step computes tokens far behind.
  model.cache.forgetPrefixes()
  await turn(40)
  t.deepEqual(steps.of(chat).slice(3), [296, 298])
})

test('generate and run name positions of the whole sequence, and forks have them', async t => {
  const { model, steps } = modelOf('state')
  await using _ = model
  const tokens = tokensOf(new Dice(4), 60)
  using one = model.open({ tokens: tokens.slice(0, 30) })
  t.deepEqual(await take(model, one, 1, { tokens: tokens.slice(30), checkpoints: [17, 36] }), alone(tokens, 1))
  t.deepEqual(steps.of(one), [16, 36, 60])
  using two = model.open()
  const [logits] = (await model.run([{ sequence: two, tokens: tokens.toReversed(), checkpoints: [40] }])) as [
    Float32Array,
  ]
  t.deepEqual([logits.indexOf(1)], alone(tokens.toReversed(), 1))
  t.deepEqual(steps.of(two), [40, 60])
  using three = model.open({ tokens: [1, 2, ...tokens], checkpoints: [8, 24] })
  using four = three.fork()
  await take(model, four, 1)
  t.deepEqual(steps.of(four), [8, 24, 62])
  // Positions behind a truncation are not named any more, and the first 20 tokens are in the cache.
  three.truncate(22)
  await take(model, three, 1, { tokens: tokensOf(new Dice(5), 30) })
  t.deepEqual(steps.of(three), [52])
})

test('the second prompt leaves a checkpoint where it leaves the first', async t => {
  const { model, steps } = modelOf('state')
  await using _ = model
  const [shared, dice] = [tokensOf(new Dice(6), 33), new Dice(7)]
  using first = model.open({ tokens: [...shared, 1, ...tokensOf(dice, 20)] })
  await take(model, first, 1)
  // A cache with states would find no state there.
  model.cache.forgetPrefixes()
  using second = model.open({ tokens: [...shared, 2, ...tokensOf(dice, 20)] })
  await take(model, second, 1)
  t.deepEqual(steps.of(first), [54])
  t.deepEqual(steps.of(second), [32, 54])
})

test("300 random mixes: every wanted position is a step's end, no step exceeds the budget, and tokens stay the same", async t => {
  for (let seed = 1; seed <= 300; seed++) {
    const dice = new Dice(seed)
    const budget = 1 + dice.roll(30)
    const { model, steps } = modelOf('state', budget, seed)
    await using _ = model
    const chats = Array.from({ length: 1 + dice.roll(6) }, () => {
      const tokens = tokensOf(dice, dice.once(6) ? 129 + dice.roll(50) : 2 + dice.roll(50))
      const checkpoints = [...tokens.keys()].slice(1).filter(() => dice.once(8))
      return { tokens, checkpoints, sequence: model.open({ tokens, checkpoints }), length: 1 + dice.roll(6) }
    })
    const answers = await Promise.all(chats.map(({ sequence, length }) => take(model, sequence, length)))
    for (const [place, { tokens, checkpoints, sequence, length }] of chats.entries()) {
      t.deepEqual(answers[place], alone(tokens, length), `seed ${seed}`)
      const last = Math.floor((tokens.length - 1) / BLOCK) * BLOCK
      const ends = new Set(steps.ends.filter(({ id }) => id === sequence.id).map(({ end }) => end))
      const wholes = tokens.length > 128 ? [...checkpoints, last] : checkpoints
      for (const position of wholes.map(wanted => Math.min(wanted - (wanted % BLOCK), last)))
        if (position > 0 && !ends.has(position)) t.fail(`seed ${seed}, sequence ${place}: ${position}`)
    }
    if (steps.longest > budget) t.fail(`seed ${seed}: a step of ${steps.longest} tokens`)
    for (const { sequence } of chats) sequence.dispose()
    if (!t.passed) return
  }
})

async function codeOf(call: () => unknown): Promise<[ErrorCode, string] | undefined> {
  try {
    await call()
    return undefined
  } catch (error) {
    if (isKvTideError(error)) return [error.code, error.message]
    throw error
  }
}

test('positions that are none are refused by name, and nothing is computed', async t => {
  const { model, steps } = modelOf('full')
  await using _ = model
  const tokens = [1, 2, 3, 4, 5]
  for (const [checkpoints, where, expected] of [
    [7, 'checkpoints', 'an array of numbers of tokens'],
    [[1, 2.5], 'checkpoints[1]', 'a whole number from 1'],
    [[0], 'checkpoints[0]', 'a whole number from 1'],
    [[3, 2], 'checkpoints[1]', 'more than 3, the position before it'],
    [[3, 3], 'checkpoints[1]', 'more than 3, the position before it'],
    [[2, 6], 'checkpoints[1]', 'at most 5, the number of tokens of the prompt'],
  ] as const) {
    const calls: [string, () => unknown][] = [
      ['', () => model.open({ tokens, checkpoints: checkpoints as never })],
      ['', () => take(model, model.open({ tokens: tokens.slice(3) }), 1, { tokens: tokens.slice(0, 3), checkpoints })],
      ['entries[0].', () => model.run([{ sequence: model.open(), tokens, checkpoints: checkpoints as never }])],
    ]
    for (const [before, call] of calls) {
      const [code, message] = (await codeOf(call)) ?? []
      t.is(code, 'INVALID_ARGUMENT')
      t.true(message?.includes(`${before}${where} `), message)
      t.true(message?.includes(expected), message)
    }
  }
  t.is(steps.steps, 0)
  t.is(await codeOf(() => model.open({ tokens, checkpoints: [5] })), undefined)
})
