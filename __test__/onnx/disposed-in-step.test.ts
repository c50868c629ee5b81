// Sequences that are disposed of at any moment while they are computed: their generations and calls of `run` end with `DISPOSED`, and the others go on.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError } from '../../index.js'
import type { OnnxModel } from '../../onnx.js'
import { drawn, drawnStates, note, schedules, turns } from '../support/onnx/schedules.js'
import { aloneOf, type Dice, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import type { ToyStates } from '../support/onnx/toy-states.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 800)

/** The error of a call on a sequence that was disposed of. Other errors are thrown. */
function disposed(t: ExecutionContext, name: string, error: unknown): void {
  if (!isKvTideError(error)) throw error
  t.is(error.message, 'the OnnxSequence was disposed of', `${name}: ${error.stack}`)
  t.is(error.code, 'DISPOSED', name)
}

interface World {
  readonly t: ExecutionContext
  readonly dice: Dice
  readonly name: string
  readonly model: OnnxModel
  readonly drafting: OnnxModel
  /** True if the cache may be too small for all of its sequences. */
  readonly isSmall: boolean
  readonly says: (tokens: readonly number[], count: number) => number[]
}

/** Generates tokens of a chat, which is disposed of meanwhile if `isDisposed` is true. */
async function generates({ t, dice, name, model, drafting, isSmall, says }: World, isDisposed: boolean): Promise<void> {
  const [prompt, maxTokens, form] = [drawn(dice), 1 + dice.roll(20), dice.roll(3)]
  const tokens = 1 + dice.roll(5)
  using chat = model.open({ tokens: prompt })
  const drafts = form === 0 ? {} : { draft: form === 1 ? { lookup: tokens } : { model: drafting, tokens } }
  const [got, wanted] = [[] as number[], says(prompt, maxTokens)]
  const slow = dice.once(2)
  const reading = (async () => {
    for await (const token of model.generate(chat, { maxTokens, ...drafts })) {
      got.push(token)
      if (slow) await turns(dice)
    }
  })()
  const disposing = (async () => {
    if (!isDisposed) return
    await turns(dice, isSmall ? 400 : 120)
    chat.dispose()
  })()
  try {
    await reading
    t.is(got.length, maxTokens, name)
    note(isDisposed ? 'disposed of after the end' : 'goes on')
  } catch (error) {
    if (isSmall && isKvTideError(error) && error.code === 'OUT_OF_BLOCKS') return note(error.code)
    if (!isDisposed) throw error
    disposed(t, name, error)
    note(['disposed of', 'disposed of with lookups', 'disposed of with drafts'][form] as string)
  } finally {
    await disposing
  }
  t.deepEqual(got, wanted.slice(0, got.length), name)
}

/** Computes tokens of a chat in a transaction, or outside of one, while it is disposed of. */
async function runs({ t, dice, name, model, isSmall }: World): Promise<void> {
  using chat = model.open({ tokens: drawn(dice) })
  const disposing = turns(dice, 60).then(() => chat.dispose())
  try {
    if (dice.once(2)) {
      await model.run([{ sequence: chat }])
      chat.begin()
    }
    await model.run([{ sequence: chat, tokens: drawn(dice) }])
  } catch (error) {
    if (isSmall && isKvTideError(error) && error.code === 'OUT_OF_BLOCKS') return note(error.code)
    disposed(t, name, error)
    note('disposed of in run')
  } finally {
    await disposing
  }
}

async function schedule(
  t: ExecutionContext,
  dice: Dice,
  name: string,
  { window, states, slots }: { readonly window?: number; readonly states?: ToyStates; readonly slots?: number } = {},
): Promise<void> {
  const isSmall = dice.once(3)
  const windowed = window === undefined ? {} : { window }
  const sizes = {
    capacity: isSmall ? 12 + dice.roll(12) : 2000,
    stepTokens: 4 + dice.roll(20),
    blockSize: 1 + dice.roll(5),
    states,
    slots: isSmall ? slots : 200,
    ...windowed,
  }
  const model = toyModel(new ToyBackend(dice, { states, ...windowed }), sizes)
  const drafting = toyModel(new ToyBackend(dice, { slip: 2 + dice.roll(6), states, ...windowed }), sizes)
  const says = aloneOf({ window, states })
  const world: World = { t, dice, name, model, drafting, isSmall, says }
  const others = Array.from({ length: isSmall ? dice.roll(10) : dice.roll(4) }, () => generates(world, dice.once(2)))
  if (dice.once(3)) others.push(runs(world))
  await Promise.all([generates(world, true), ...others])
  await Promise.all([model.between(() => undefined), drafting.between(() => undefined)])
  for (const { cache } of [model, drafting]) {
    t.is(cache.freeCount, cache.totalCount, `${name}: blocks are left`)
    cache.checkInvariants()
  }
  await Promise.all([model.dispose(), drafting.dispose()])
}

const ALL = [
  'disposed of',
  'disposed of with lookups',
  'disposed of with drafts',
  'disposed of after the end',
  'disposed of in run',
  'goes on',
]

test.serial('generations of sequences that are disposed of end with DISPOSED, and others go on', async t => {
  await schedules(t, CASES, (dice, name) => schedule(t, dice, name), ALL)
})

test.serial('the same over layers with a window', async t => {
  const run = (dice: Dice, name: string): Promise<void> => schedule(t, dice, name, { window: 1 + dice.roll(12) })
  await schedules(t, Math.ceil(CASES / 2), run, ALL)
})

test.serial('the same over layers with states', async t => {
  const run = (dice: Dice, name: string, seed: number): Promise<void> =>
    schedule(t, dice, name, drawnStates(dice, seed))
  await schedules(t, Math.ceil(CASES / 4), run, ALL)
})
