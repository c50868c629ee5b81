// Random schedules over a model: each has a seed, which the log names if it fails, and notes what happens in it.
import { AsyncLocalStorage } from 'node:async_hooks'

import type { ExecutionContext } from 'ava'

import type { OnnxModel } from '../../../onnx.js'
import { Dice, type ToyBackend, VOCABULARY } from './toy-model.js'
import { TOY_STATES, type ToyStates } from './toy-states.js'

/** Occurrences by name, over all schedules of the test that runs: tests of a file run at once. */
const occurrences = new AsyncLocalStorage<Map<string, number>>()

/** Counts an occurrence. */
export function note(what: string): void {
  const seen = occurrences.getStore()
  seen?.set(what, (seen.get(what) ?? 0) + 1)
}

/** The only seed to run, if one is given. */
const ONLY = process.env['KVTIDE_SCHEDULE']
/** The first of the seeds to run. */
export const FIRST_SEED: number = Number(process.env['KVTIDE_FIRST_SEED'] ?? 1)

/**
 * Runs `count` schedules, with the seeds from `KVTIDE_FIRST_SEED` (default: 1) on, or only the seed `KVTIDE_SCHEDULE`. Fails if one of `all` is not noted in a
 * hundredth of the schedules.
 */
export async function schedules(
  t: ExecutionContext,
  count: number,
  run: (dice: Dice, name: string, seed: number) => Promise<void>,
  all: readonly string[],
): Promise<void> {
  const seen = new Map<string, number>()
  const [first, last] = ONLY === undefined ? [FIRST_SEED, FIRST_SEED + count - 1] : [Number(ONLY), Number(ONLY)]
  for (let seed = first; seed <= last && t.passed; seed++) {
    try {
      await occurrences.run(seen, () => run(new Dice(seed), `seed ${seed}`, seed))
    } catch (error) {
      t.log(`seed ${seed}`)
      throw error
    }
  }
  t.log(Object.fromEntries(seen))
  if (t.passed && ONLY === undefined) for (const what of all) t.true((seen.get(what) ?? 0) > count / 100, what)
}

/** One schedule of a toy model. */
export interface World {
  readonly t: ExecutionContext
  readonly dice: Dice
  readonly name: string
  readonly model: OnnxModel
  /** The layers that keep states, if any: then a transaction keeps all of its tokens or none. */
  readonly states?: ToyStates | undefined
  says(tokens: readonly number[], count: number): number[]
}

export const drawn = (dice: Dice, most = 14): number[] =>
  Array.from({ length: 1 + dice.roll(most) }, () => dice.roll(VOCABULARY - 1))

/** The layers that keep states in the schedule of a seed, and how many of these states a cache has room for. */
export const drawnStates = (dice: Dice, seed: number): { readonly states: ToyStates; readonly slots: number } => ({
  states: TOY_STATES[seed % TOY_STATES.length] as ToyStates,
  slots: 3 + dice.roll(dice.once(2) ? 8 : 60),
})

export async function turns(dice: Dice, most = 12): Promise<void> {
  for (let turn = dice.roll(most); turn > 0; turn--) await Promise.resolve()
}

/** Fails a schedule that begins steps again and again without computing one. */
export function watch({ cache }: OnnxModel, backend: ToyBackend): void {
  const begin = cache.beginStep.bind(cache)
  let [attempts, steps] = [0, -1]
  const beginStep = (options: Parameters<typeof begin>[0]): ReturnType<typeof begin> => {
    if (backend.steps !== steps) [attempts, steps] = [0, backend.steps]
    attempts += 1
    if (attempts > 1000) throw new Error('1,000 steps were begun and none was computed')
    return begin(options)
  }
  Object.defineProperty(cache, 'beginStep', { value: beginStep })
}
