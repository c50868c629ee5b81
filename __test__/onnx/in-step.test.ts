// Sequences that are looked at while they are computed, at any moment: forks, snapshots, files and reads have what was given out by then.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError, PagedKvCache } from '../../index.js'
import { OnnxModel, type OnnxSequence } from '../../onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { graphFile } from '../support/onnx/paged-graph.js'
import { drawn, drawnStates, note, schedules, turns, type World } from '../support/onnx/schedules.js'
import { aloneOf, type Dice, POISON, statesAfter, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import type { ToyStates } from '../support/onnx/toy-states.js'
import { rejected } from '../support/throws.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 400)

/** Looks at a chat while `work` is done on it. Its tokens are the first of `whole`, at least as many as `least` says then. */
async function watched(
  world: World,
  chat: OnnxSequence,
  { whole, least, most }: { whole: readonly number[]; least: () => number; most: () => number },
  work: Promise<unknown>,
): Promise<void> {
  const { t, dice, name } = world
  let isDone = false
  const worked = work.finally(() => (isDone = true))
  const looks: Promise<void>[] = []
  for (;;) {
    await turns(dice)
    // What is done on other threads is heard of in turns of the event loop.
    if (dice.once(3)) await new Promise(resolve => setImmediate(resolve))
    if (isDone) break
    const tokens = [...chat.tokens]
    t.true(
      tokens.length >= least() && tokens.length <= most(),
      `${name}: ${tokens.length} tokens, expected ${least()} to ${most()}`,
    )
    t.deepEqual(tokens, whole.slice(0, tokens.length), name)
    t.true(
      chat.length <= tokens.length && chat.committedLength <= chat.length,
      `${name}: ${chat.length} of ${tokens.length} are computed`,
    )
    looks.push(look(world, chat, tokens))
    if (!t.passed) break
  }
  await Promise.all([worked, ...looks])
}

/** Looks at a chat in one of the ways there are. */
async function look(world: World, chat: OnnxSequence, tokens: readonly number[]): Promise<void> {
  const { t, dice, name, model } = world
  switch (dice.roll(6)) {
    case 0: {
      note('fork')
      return goesOn(world, chat.fork(), tokens)
    }
    case 1: {
      note('snapshot')
      using snapshot = chat.snapshot()
      const restored = model.open({ salt: 'one' })
      restored.restore(snapshot)
      return goesOn(world, restored, tokens)
    }
    case 2: {
      note('bytes')
      const bytes = await chat.saveBytes()
      try {
        return await goesOn(world, await model.loadSequence(bytes, { salt: 'one' }), tokens)
      } catch (error) {
        if (!isKvTideError(error) || error.code !== 'OUT_OF_BLOCKS') throw error
        return note(error.code)
      }
    }
    case 3: {
      note('fork of a fork')
      using fork = chat.fork()
      return goesOn(world, fork.fork(), tokens)
    }
    case 4: {
      note('read')
      const { length } = chat
      if (world.states !== undefined) return readStates(world, chat, tokens)
      const { k } = chat.kv(0)
      t.is(k.shape[2], chat.retainedLength, name)
      t.true(chat.retainedLength <= length, name)
      return
    }
    default: {
      const fork = chat.fork()
      t.deepEqual([...fork.tokens], [...tokens], name)
      return fork.dispose()
    }
  }
}

/** The states of a chat are those after the tokens that a fork has, which may be fewer: there is none within a step. */
function readStates({ t, name }: World, chat: OnnxSequence, tokens: readonly number[]): void {
  using fork = chat.fork()
  t.true(fork.length <= chat.length, name)
  const seen = tokens.slice(0, fork.length)
  const found = chat.states()
  const after = [false, true].map(isLong => statesAfter(seen, isLong))
  t.true(
    after.some(states => states.every((byte, at) => byte === found[at])),
    `${name}: the states are not those of ${fork.length} tokens`,
  )
}

/** A copy has these tokens, and says behind them what it says alone. */
async function goesOn(
  { t, dice, name, model, says }: World,
  copy: OnnxSequence,
  tokens: readonly number[],
): Promise<void> {
  t.deepEqual([...copy.tokens], [...tokens], `${name}: a copy has other tokens`)
  if (dice.once(2)) await turns(dice, 40)
  const count = 1 + dice.roll(4)
  try {
    const got: number[] = []
    for await (const token of model.generate(copy, { maxTokens: count })) got.push(token)
    t.deepEqual(got, says(tokens, count), `${name}: a copy says something else`)
    note('copies')
  } catch (error) {
    if (!isKvTideError(error) || error.code !== 'OUT_OF_BLOCKS') throw error
    note(error.code)
  } finally {
    copy.dispose()
  }
}

async function talked(world: World, drafting: OnnxModel): Promise<void> {
  const { t, dice, name, model, says } = world
  const prompt = drawn(dice)
  using chat = model.open({ tokens: prompt, salt: 'one' })
  const tokens = [...prompt]
  for (let turn = 1 + dice.roll(3); turn > 0; turn--) {
    if (dice.once(4)) {
      const more = drawn(dice)
      const before = [...tokens]
      const poisoned = dice.once(4)
      const running = model.run([{ sequence: chat, tokens: poisoned ? [...more, POISON] : more }]).then(
        () => true,
        () => false,
      )
      await watched(world, chat, { whole: before, least: () => before.length, most: () => before.length }, running)
      if (await running) tokens.push(...more)
      t.deepEqual([...chat.tokens], tokens, name)
      continue
    }
    const [maxTokens, breakAt] = [1 + dice.roll(24), dice.once(3) ? dice.roll(12) : Infinity]
    const draft = dice.roll(3)
    const whole = [...tokens, ...says(tokens, maxTokens)]
    const [before, got] = [tokens.length, [] as number[]]
    const generation = model.generate(chat, {
      maxTokens,
      ...(draft === 0
        ? {}
        : { draft: draft === 1 ? { lookup: 1 + dice.roll(5) } : { model: drafting, tokens: 1 + dice.roll(5) } }),
    })
    const reading = (async () => {
      try {
        for await (const token of generation) {
          got.push(token)
          if (dice.once(2)) await turns(dice)
          if (got.length < breakAt) continue
          if (dice.once(2)) {
            await model.between(() => generation.return())
            note('ended between steps')
          }
          break
        }
      } catch (error) {
        if (!isKvTideError(error) || error.code !== 'OUT_OF_BLOCKS') throw error
        note(error.code)
      }
    })()
    // One may be on its way to the reader.
    await watched(
      world,
      chat,
      { whole, least: () => before + got.length, most: () => before + got.length + 1 },
      reading,
    )
    tokens.push(...got)
    t.deepEqual(tokens, whole.slice(0, tokens.length), `${name}: it says something else`)
    t.deepEqual([...chat.tokens], tokens, name)
    note('generated')
  }
}

async function looked(
  t: ExecutionContext,
  dice: Dice,
  name: string,
  { window, ...kept }: { readonly window?: number; readonly states?: ToyStates; readonly slots?: number } = {},
): Promise<void> {
  const { states } = kept
  const sizes = { capacity: 60 + dice.roll(200), stepTokens: 4 + dice.roll(20), blockSize: 1 + dice.roll(5), ...kept }
  const windowed = window === undefined ? {} : { window }
  const backend = new ToyBackend(dice, { states, ...windowed })
  // Beyond some length, all tokens count with other numbers: the second model's own, and now and then not at the same length.
  const threshold = dice.once(3) ? 5 + dice.roll(40) : undefined
  const theirs = dice.once(3) ? 5 + dice.roll(40) : threshold
  const model = toyModel(backend, { ...sizes, threshold, ...windowed })
  const slip = 2 + dice.roll(6)
  const drafter = new ToyBackend(dice, { slip, states, ...windowed })
  const drafting = toyModel(drafter, { ...sizes, threshold: theirs, ...windowed })
  const world: World = { t, dice, name, model, states, says: aloneOf({ window, threshold, states }) }
  await Promise.all(Array.from({ length: 1 + dice.roll(3) }, () => talked(world, drafting)))
  t.is(model.cache.freeCount, model.cache.totalCount, `${name}: blocks are left`)
  model.cache.checkInvariants()
  await Promise.all([model.dispose(), drafting.dispose()])
}

const LOOKS = ['fork', 'snapshot', 'bytes', 'fork of a fork', 'read', 'copies', 'generated', 'ended between steps']

test.serial('reads of a sequence while it is computed see what was given out', async t => {
  await schedules(t, CASES, (dice, name) => looked(t, dice, name), LOOKS)
})

test.serial('the same over layers with a window', async t => {
  const run = (dice: Dice, name: string): Promise<void> => looked(t, dice, name, { window: 1 + dice.roll(12) })
  await schedules(t, Math.ceil(CASES / 2), run, LOOKS)
})

test.serial('the same over layers with states', async t => {
  const run = (dice: Dice, name: string, seed: number): Promise<void> => {
    const { states, slots } = drawnStates(dice, seed)
    return looked(t, dice, name, { states, slots: 20 + slots })
  }
  await schedules(t, Math.ceil(CASES / 4), run, LOOKS)
})

/** Looks at a chat at each turn of the event loop, while a real model computes, and takes a fork now and then. */
async function forksOf(
  t: ExecutionContext,
  chat: OnnxSequence,
  whole: readonly number[],
  work: Promise<unknown>,
): Promise<OnnxSequence[]> {
  const forks: OnnxSequence[] = []
  let isDone = false
  const worked = work.finally(() => (isDone = true))
  // oxlint-disable-next-line no-unmodified-loop-condition
  for (let turn = 0; !isDone; turn++) {
    await new Promise(resolve => setImmediate(resolve))
    const tokens = [...chat.tokens]
    using fork = chat.fork()
    t.deepEqual([[...fork.tokens], [...tokens]], [tokens, whole.slice(0, tokens.length)])
    if (turn % 16 < 2 && forks.length < 12) forks.push(fork.fork())
  }
  await worked
  return forks
}

for (const backend of ['graph', 'parts', 'plain'] as const) {
  for (const draft of [undefined, 'lookup'] as const) {
    onnxTest(`${backend}, ${draft ?? 'no drafts'}: forks at any moment of a step`, async t => {
      await using model = await OnnxModel.load(graphFile('onnx'), {
        backend,
        threads: 1,
        cache: { capacity: 400, blockSize: 4 },
      })
      using chat = model.open({ tokens: promptOf('p33') })
      const [whole, got] = [[...promptOf('p33'), ...greedyOf('p33')], [] as number[]]
      const forks = await forksOf(
        t,
        chat,
        whole,
        read(model, chat, 40, draft === undefined ? {} : { draft }).then(tokens => got.push(...tokens)),
      )
      t.deepEqual(got, greedyOf('p33').slice(0, 40))
      t.true(forks.length > 1)
      await Promise.all(
        forks.map(async fork => {
          const length = fork.tokens.length - promptOf('p33').length
          t.deepEqual(await read(model, fork, 3), greedyOf('p33').slice(length, length + 3))
          fork.dispose()
        }),
      )
      model.cache.checkInvariants()
    })
  }
}

for (const format of ['q8', 'f8e4m3', 'q4'] as const) {
  onnxTest(`graph, ${format}: who is forked in its steps says what it says alone`, async t => {
    const load = (keyFormat: typeof format) =>
      OnnxModel.load(graphFile('onnx'), {
        backend: 'graph',
        threads: 1,
        cache: { capacity: 400, blockSize: 4, keyFormat, valueFormat: keyFormat },
      })
    await using model = await load(format)
    await using other = await load(format)
    const tokens = promptOf('p33')
    using lone = other.open({ tokens })
    // Forks that are taken at the end say three tokens more.
    const wanted = await read(other, lone, 43)
    using chat = model.open({ tokens })
    const got: number[] = []
    const forks = await forksOf(
      t,
      chat,
      [...tokens, ...wanted],
      read(model, chat, 40).then(said => got.push(...said)),
    )
    t.deepEqual(got, wanted.slice(0, 40))
    for (const fork of forks) {
      const length = fork.tokens.length - tokens.length
      t.deepEqual(await read(model, fork, 3), wanted.slice(length, length + 3))
      fork.dispose()
    }
    // Its full pages were quantised: prompts find them.
    using match = model.cache.match([...tokens, ...wanted.slice(0, 40)])
    t.true(match.length >= tokens.length + 36, `${match.length} tokens are found`)
    model.cache.checkInvariants()
  })
}

const rows = (tokens: number, value: number) => ({
  data: new Float32Array(tokens * 2).fill(value),
  shape: [1, tokens, 2],
})
const both = (tokens: number, value: number) => ({
  data: new Float32Array(2 * tokens * 2).fill(value),
  shape: [2, 1, tokens, 2],
})

test('a fork has what was there before the step, in a cache of one’s own', async t => {
  using cache = new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 2 })
  using chat = cache.openSequence()
  chat.append({ tokens: [1, 2, 3], k: both(3, 1), v: both(3, 1) })
  using step = cache.beginStep({ sequences: [chat], offsets: [0, 6], tokens: [4, 5, 6, 7, 8, 9] })
  step.write(0, rows(6, 2), rows(6, 2))
  using fork = chat.fork()
  using snapshot = chat.snapshot()
  const bytes = await chat.saveBytes()
  step.write(1, rows(6, 2), rows(6, 2))
  step.commit()
  using restored = cache.openSequence()
  restored.restore(snapshot)
  using loaded = await cache.loadSequence(bytes)
  for (const copy of [fork, restored, loaded]) {
    t.is(copy.length, 3)
    for (const layer of [0, 1]) t.deepEqual(copy.kv(layer).k.toArray(), new Float32Array(6).fill(1))
    copy.append({ tokens: [4], k: both(1, 3), v: both(1, 3) })
    t.deepEqual([...copy.kv(1).v.toArray()], [1, 1, 1, 1, 1, 1, 3, 3])
  }
  t.deepEqual(
    [...chat.kv(0).k.toArray()],
    [...Array.from({ length: 6 }, () => 1), ...Array.from({ length: 12 }, () => 2)],
  )
  using draft = chat.begin()
  t.is(draft.length, 0)
  await rejected(chat.saveBytes(), 'TRANSACTION_OPEN')
  cache.checkInvariants()
})
