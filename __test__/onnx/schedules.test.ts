// Random schedules: many clients generate, run, cancel, fork, cut, draft, rest and drop at once, on pools that are too small, some with prompts that
// never fit. Each of them has to get what it would get alone, and none may be refused that has room beside what resting clients keep.
import { readFileSync } from 'node:fs'

import test, { type ExecutionContext } from 'ava'

import type { PageFormat } from '../../index.js'
import { OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { encodings, models as encoderDecoders } from '../support/onnx/encoder-decoder.js'
import { POISON as HYBRID_POISON, VOCABULARY as HYBRID_VOCABULARY } from '../support/onnx/hybrid-graph.js'
import { linearGraph, linearGreedy } from '../support/onnx/linear-graph.js'
import { graphFile } from '../support/onnx/paged-graph.js'
import { Pins } from '../support/onnx/pins.js'
import { Client, type ClientWorld } from '../support/onnx/schedule-client.js'
import { drawnStates, schedules, watch } from '../support/onnx/schedules.js'
import {
  type Alone,
  aloneOf,
  type Dice,
  POISON,
  SUMMED,
  ToyBackend,
  toyModel,
  VOCABULARY,
} from '../support/onnx/toy-model.js'

/** Logits that are nearer to each other may be in another order in another step. */
const NEAR = 1e-3
const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 2000)

/** Clients of one model, all at once. */
async function talk(t: ExecutionContext, world: ClientWorld, dice: Dice, name: string): Promise<void> {
  const clients = Array.from(
    { length: 1 + dice.roll(5) },
    (_, place) => new Client(t, world, dice, `${name}, client ${place}`),
  )
  await Promise.all(clients.map(client => client.talk(1 + dice.roll(4))))
  const { cache } = world.model
  t.is(cache.freeCount, cache.totalCount, `${name}: blocks are left`)
  cache.checkInvariants()
}

const PAGES: readonly PageFormat[] = ['f32', 'f16', 'bf16', 'f8e4m3', 'q8', 'q4']

interface Form {
  readonly window?: number | undefined
  readonly hasStates?: boolean
}

async function schedule(
  t: ExecutionContext,
  dice: Dice,
  name: string,
  seed: number,
  { window, hasStates = false }: Form = {},
): Promise<void> {
  const kept = hasStates ? drawnStates(dice, seed) : {}
  const { states } = kept as Partial<ReturnType<typeof drawnStates>>
  const pages = PAGES[seed % PAGES.length] as PageFormat
  const sizes = {
    capacity: (window === undefined ? 12 : 3) + dice.roll(60),
    stepTokens: 4 + dice.roll(20),
    sequences: 1 + dice.roll(8),
    ...kept,
  }
  const threshold = dice.once(3) ? 5 + dice.roll(40) : undefined
  const windowed = window === undefined ? {} : { window }
  const backend = new ToyBackend(dice, { pages, states, ...windowed })
  const hasPictures = dice.once(2)
  const width = hasPictures ? SUMMED : undefined
  const model = toyModel(backend, { ...sizes, pages, threshold, width, ...windowed })
  const says = aloneOf({ window, threshold, states })
  const world = {
    model,
    vocabulary: VOCABULARY,
    poison: POISON,
    pins: new Pins(model),
    drafts: dice.once(4) ? 2 : 6,
    threshold,
    hasPictures,
    isWhole: states !== undefined,
    alone: says satisfies Alone,
  }
  watch(model, backend)
  await talk(t, world, dice, `${name}, ${pages}${states === undefined ? '' : `, states ${states}`}`)
  t.false(backend.isComputing)
  model.cache.forgetPrefixes()
  await model.dispose()
}

const ALL = [
  'length',
  'stop',
  'left',
  'run',
  'twin',
  'rolled back',
  'committed in part',
  'endless',
  'ABORTED',
  'OUT_OF_BLOCKS',
  'found picture',
  'cut picture',
]

test.serial('random schedules give what each gets alone', async t => {
  await schedules(t, CASES, (dice, name, seed) => schedule(t, dice, name, seed), [...ALL, 'poison', 'TRANSACTION_OPEN'])
})

test.serial('random schedules over layers with a window', async t => {
  await schedules(
    t,
    Math.ceil(CASES / 5),
    (dice, name, seed) => schedule(t, dice, name, seed, { window: 1 + (seed % 13) }),
    [...ALL.filter(what => what !== 'endless'), 'poison', 'CANNOT_ROLL_BACK'],
  )
})

const WITH_STATES = [
  ...ALL.filter(what => what !== 'endless' && what !== 'committed in part'),
  'poison',
  'TRANSACTION_OPEN',
  'refused between two states',
]

test.serial('random schedules over layers with states', async t => {
  const run = (dice: Dice, name: string, seed: number): Promise<void> =>
    schedule(t, dice, name, seed, { hasStates: true, window: dice.once(4) ? 1 + dice.roll(13) : undefined })
  await schedules(t, Math.ceil(CASES / 20), run, WITH_STATES)
})

/** A whole model, and what it says to each alone: on another one, from the start. */
function wholeModel(
  [model, other]: readonly [OnnxModel, OnnxModel],
  vocabulary: number,
): ClientWorld & AsyncDisposable {
  let name = 0
  return {
    model,
    vocabulary,
    poison: undefined,
    pins: new Pins(model),
    drafts: 6,
    alone: async (tokens, count, _total, _pictures, encoded) => {
      using sequence = other.open({ tokens, salt: `${name++}`, ...(encoded === undefined ? {} : { encoded }) })
      const found: number[] = []
      const generation = other.generate(sequence, { maxTokens: count, logprobs: 2 })
      for await (const token of generation) {
        const [first, second] = generation.logprobs?.top ?? []
        if ((first?.logprob ?? 0) - (second?.logprob ?? 0) < NEAR) break
        found.push(token)
      }
      return found
    },
    [Symbol.asyncDispose]: async () => void (await Promise.all([model.dispose(), other.dispose()])),
  }
}

/** The outcomes of schedules over a whole model. */
const WHOLE = ['length', 'stop', 'left', 'run', 'rolled back', 'ABORTED']

const SIZES = { threads: 1, maxStepTokens: 24 }

const loadLlama = (capacity: number): Promise<OnnxModel> =>
  OnnxModel.load(graphFile('onnx'), { backend: 'graph', ...SIZES, cache: { capacity, blockSize: 4 } })

onnxTest('random schedules over a whole model', async t => {
  await using world = wholeModel([await loadLlama(48), await loadLlama(400)], 320)
  await schedules(t, Math.max(20, Math.ceil(CASES / 200)), (dice, name) => talk(t, world, dice, name), WHOLE)
})

for (const of of encoderDecoders)
  for (const backend of of.backends)
    onnxTest(`random schedules over ${of.name}, a decoder with an encoder, on ${backend}`, async t => {
      const [decoder, encoder] = [readFileSync(of.file), readFileSync(of.encoder)]
      const load = (options: Pick<OnnxModelOptions, 'backend' | 'crossCacheBytes'>, capacity: number) =>
        OnnxModel.load(decoder, { encoder, ...SIZES, ...options, cache: { capacity, blockSize: 4 } })
      // The cross cache has room for one encoding. The other model computes all of it with the unmodified graph. A sequence has at most 64 tokens.
      const own = await load({ backend, crossCacheBytes: 2 ** 12 }, 14)
      await using world = wholeModel([own, await load({ backend: 'plain' }, 400)], 72)
      const made = [...(await encodings(world.model, of)).values()]
      const run = (dice: Dice, name: string): Promise<void> => talk(t, { ...world, encodings: made }, dice, name)
      await schedules(t, Math.max(20, Math.ceil(CASES / 200)), run, WHOLE)
      t.true((world.model.crossCache?.computed ?? 0) > made.length)
    })

for (const backend of ['graph', 'parts', 'plain'] as const) {
  onnxTest(`random schedules over a model with states on ${backend}`, async t => {
    await using model = await OnnxModel.load(linearGraph(), {
      backend,
      threads: 1,
      maxStepTokens: 24,
      cache: { capacity: 400, blockSize: 4 },
    })
    const world = {
      model,
      vocabulary: HYBRID_VOCABULARY,
      poison: HYBRID_POISON,
      pins: new Pins(model),
      drafts: 2,
      poisons: 8,
      isWhole: true,
      runsDrafts: true,
      alone: ((tokens, count) => linearGreedy(tokens, count)) satisfies Alone,
    }
    await schedules(t, Math.max(40, Math.ceil(CASES / 500)), (dice, name) => talk(t, world, dice, name), [
      ...WHOLE,
      'poison',
      backend === 'plain' ? 'refused between two states' : 'committed between two states',
    ])
  })
}
