// Models whose layers keep states, in random worlds: pools and slots that run out, tiers, page formats, second models, files, and clients that do everything in any
// order. Each of them gets what it would get alone. A toy shows the most in the least time; real graphs run on the backends that can run them.
import { randomBytes } from 'node:crypto'

import test, { type ExecutionContext } from 'ava'

import { isKvTideError, type ModelCacheOptions, type PageFormat, type TierPolicy } from '../../index.js'
import { type BackendName, OnnxModel } from '../../onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { HybridClient, type HybridWorld } from '../support/onnx/hybrid-client.js'
import { BUILDER, greedy, hybridGraph, type HybridForm, STATES, VOCABULARY } from '../support/onnx/hybrid-graph.js'
import { drawnStates, note, schedules, watch } from '../support/onnx/schedules.js'
import {
  aloneOf,
  type Dice,
  statesAfter,
  ToyBackend,
  toyModel,
  VOCABULARY as OF_TOY,
} from '../support/onnx/toy-model.js'
import { inFolder } from '../support/folder.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 250)
/** The backends that run graphs with states. */
const BACKENDS = ['plain'] as const satisfies readonly BackendName[]

const PAGES: readonly PageFormat[] = ['f32', 'f16', 'bf16', 'f8e4m3', 'q8', 'q4']
const POLICIES: readonly TierPolicy[] = ['eviction', 'commit', 'second-use']
/** A time that no restore takes. */
const LATE = 60_000

/** Tiers below a pool, which several caches share if they are in a folder. */
function tiersOf(dice: Dice, folder: string | undefined): Pick<ModelCacheOptions, 'tiers'> {
  const policy = (): TierPolicy => POLICIES[dice.roll(POLICIES.length)] as TierPolicy
  const memory = dice.once(3) ? { memory: { limitBytes: 2 ** (9 + dice.roll(10)), policy: policy() } } : {}
  const disk = folder === undefined ? {} : { disk: { path: folder, policy: policy() } }
  const tiers = { ...memory, ...disk }
  // Some restores come too late, at any moment.
  const deadline = dice.once(4) ? 1 : LATE
  return Object.keys(tiers).length === 0 ? {} : { tiers: { ...tiers, deadline } }
}

/** Clients of all models at once, and then one with everything for itself. */
async function talk(world: HybridWorld): Promise<void> {
  const { t, dice, name, models, says, vocabulary } = world
  const clients = Array.from({ length: 1 + dice.roll(5) }, (_, place) => new HybridClient(world, `client ${place}`))
  await Promise.all(clients.map(client => client.talk(1 + dice.roll(6))))
  for (const model of models) {
    await model.between(() => undefined)
    if (world.hasTiers) t.true(await model.cache.flush(LATE), name)
    t.is(model.cache.freeCount, model.cache.totalCount, `${name}: blocks are left`)
    t.deepEqual(model.cache.sequenceIds(), [], name)
    model.cache.checkInvariants()
    const tokens = [dice.roll(vocabulary - 1), dice.roll(vocabulary - 1)]
    using chat = model.open({ tokens })
    const got: number[] = []
    for await (const token of model.generate(chat, { maxTokens: 4 })) got.push(token)
    t.deepEqual(got, says(tokens, 4), `${name}: the last one has all the room`)
  }
}

async function toyWorld(t: ExecutionContext, dice: Dice, name: string, seed: number): Promise<void> {
  const { states, slots } = drawnStates(dice, seed)
  const pages = PAGES[dice.roll(PAGES.length)] as PageFormat
  const window = states !== 'alone' && dice.once(4) ? 1 + dice.roll(12) : undefined
  const form = { pages, states, ...(window === undefined ? {} : { window }) }
  const sizes = {
    capacity: 10 + dice.roll(60),
    stepTokens: 4 + dice.roll(20),
    blockSize: 1 + dice.roll(5),
    sequences: 1 + dice.roll(8),
    ...form,
  }
  const work = async (folder?: string): Promise<void> => {
    const tiers = tiersOf(dice, folder)
    const more = { ...tiers, prefixKey: new Uint8Array(32).fill(5) }
    const models = Array.from({ length: 1 + dice.roll(2) }, () => {
      const backend = new ToyBackend(dice, form)
      const model = toyModel(backend, { ...sizes, slots, more })
      watch(model, backend)
      return model
    })
    const drafts = toyModel(new ToyBackend(dice, { ...form, slip: 2 + dice.roll(6) }), { ...sizes, slots: slots + 8 })
    await talk({
      t,
      dice,
      name: `${name}, ${pages}, states ${states}, window ${window}, ${slots} slots`,
      models,
      drafts,
      vocabulary: OF_TOY,
      isPoison: error => (error as Error).message === 'poison',
      hasWindow: window !== undefined,
      hasTiers: tiers.tiers !== undefined,
      says: aloneOf({ window, states }),
      statesAfter,
    })
    await Promise.all([...models, drafts].map(model => model.dispose()))
  }
  await (dice.once(8) ? inFolder(work) : work())
}

const ALL = [
  'generated',
  'drafted',
  'run',
  'truncated',
  'resumed',
  'forked',
  'restored',
  'rolled back',
  'committed',
  'loaded',
  'exchanged',
  'abandoned',
  'found',
  'admitted',
  'poison',
  'OUT_OF_BLOCKS',
  'ABORTED',
  'DISPOSED',
]

test.serial('a toy with states, in random worlds', async t => {
  const run = (dice: Dice, name: string, seed: number): Promise<void> => toyWorld(t, dice, name, seed)
  await schedules(t, CASES, run, [...ALL, 'restored from tiers'])
})

/** Graphs, and caches for them. All of their numbers are whole, and rows have none above 12: these formats of pages keep them. */
const GRAPHS: readonly {
  readonly form: HybridForm
  readonly maxStepTokens: number
  readonly cache: { readonly blockSize: number; readonly capacity: readonly number[]; readonly keyFormat?: PageFormat }
}[] = [
  { form: {}, maxStepTokens: 16, cache: { blockSize: 4, capacity: [40, 9] } },
  {
    form: { isHalf: true, names: STATES },
    maxStepTokens: 9,
    cache: { blockSize: 3, capacity: [60, 40], keyFormat: 'bf16' },
  },
  {
    form: { isPruned: true, names: BUILDER },
    maxStepTokens: 24,
    cache: { blockSize: 8, capacity: [20, 5], keyFormat: 'f16' },
  },
  { form: { hasAttention: false }, maxStepTokens: 11, cache: { blockSize: 5, capacity: [7] } },
]

for (const backend of BACKENDS) {
  for (const [place, { form, maxStepTokens, cache }] of GRAPHS.entries()) {
    onnxTest(
      `graph ${place} on ${backend}, in random worlds`,
      async t => {
        const load = (bytes: Buffer, more: Partial<ModelCacheOptions> = {}): Promise<OnnxModel> =>
          OnnxModel.load(bytes, { backend, threads: 1, maxStepTokens, cache: { ...cache, ...more } })
        const prefixKey = randomBytes(32)
        const tiers = { memory: { limitBytes: 2 ** 16 }, deadline: LATE }
        await using one = await load(hybridGraph(form), { prefixKey, tiers })
        await using other = await load(hybridGraph(form), { prefixKey, tiers })
        await using drafts = await load(hybridGraph({ ...form, slip: 3 }), { capacity: cache.capacity.map(() => 100) })
        const run = async (dice: Dice, name: string): Promise<void> => {
          await talk({
            t,
            dice,
            name,
            models: dice.once(2) ? [one] : [one, other],
            drafts,
            vocabulary: VOCABULARY,
            isPoison: error => isKvTideError(error) && error.code === 'RUNTIME_FAILED',
            hasWindow: false,
            hasTiers: true,
            says: (tokens, count) => greedy(tokens, count, form.hasAttention),
          })
          if (dice.once(10)) for (const model of [one, other]) model.cache.forgetPrefixes()
          note('world')
        }
        await schedules(t, Math.ceil(CASES / 20), run, ['world', 'generated', 'found', 'loaded'])
      },
      test.serial,
    )
  }
}
