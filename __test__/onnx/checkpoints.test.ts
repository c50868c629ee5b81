// Where checkpoints of states are taken: the rules against recorded cases, which the simulation in Rust uses as well, and against each position one by one.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { checkpointsOf, type Placing } from '../../lib/onnx/checkpoints.js'
import { Cuts } from '../../lib/onnx/cuts.js'
import { SeenPrompts } from '../../lib/onnx/seen-prompts.js'
import { TokenLog } from '../../lib/onnx/token-log.js'
import { PagedKvCache } from '../../index.js'
import { groupsOf } from '../support/onnx/state-groups.js'
import { Dice } from '../support/onnx/toy-model.js'

interface Case extends Omit<Placing, 'saltFrom'> {
  readonly name: string
  readonly saltFrom: number | null
  readonly positions: readonly number[]
}

const CASES = new URL('../../crates/kvtide-core/tests/checkpoint_traces/cases.json', import.meta.url)
const idsFrom = (length: number, other = 0): Uint32Array => Uint32Array.from({ length }, (_, at) => at + other)
const NO_SALT = { salt: new Uint8Array(0), saltFrom: 0, extra: undefined }

test('each recorded case', t => {
  const cases = JSON.parse(readFileSync(CASES, 'utf8')) as Case[]
  t.true(cases.length >= 32)
  for (const { name, saltFrom, positions, ...placing } of cases)
    t.deepEqual(checkpointsOf({ ...placing, saltFrom: saltFrom ?? undefined }), positions, name)
})

/** The distances from the end at which a prompt has positions, in tokens. */
function distancesOf({ blockSize, length, found, slots }: Placing): number[] {
  const distances: number[] = []
  for (let distance = Math.max(blockSize, 16); 4 * distance <= length - found; distance *= 8) distances.push(distance)
  return length - found < 512 ? [] : distances.slice(0, Math.max(Math.floor((Math.floor(slots / 2) - 1) / 2), 0))
}

/** True if a position is given; those between others are checked by their distances. */
function isGiven(position: number, placing: Placing): boolean {
  const { blockSize, length, reached, seen, saltFrom, named } = placing
  const last = Math.floor((length - 1) / blockSize) * blockSize
  const near = distancesOf(placing).map(distance => length - distance)
  return [length - reached > 128 ? length : 0, seen, saltFrom ?? 0, ...named, ...near].some(
    given => Math.min(Math.floor(given / blockSize) * blockSize, last) === position,
  )
}

/** The most tokens between two positions. */
function longest(placing: Placing): number {
  const most = Math.max(Math.floor(placing.slots / 2), 1) - distancesOf(placing).length
  return Math.max(Math.ceil(placing.length / 4), 1024, Math.ceil(placing.length / most))
}

test('20,000 random prompts: each given position is a checkpoint, others only where an interval would be too long', t => {
  for (let seed = 1; seed <= 20_000; seed++) {
    const dice = new Dice(seed)
    const [blockSize, length] = [1 + dice.roll(40), 1 + dice.roll(dice.once(4) ? 20_000 : 600)]
    const [found, seen] = [dice.roll(length), dice.roll(length + 1)]
    const reached = dice.once(2) ? found : dice.roll(found + 1)
    const saltFrom = dice.once(2) ? dice.roll(length + 50) : undefined
    const named = Array.from({ length: dice.roll(5) }, () => 1 + dice.roll(length))
    const slots = 1 + dice.roll(dice.once(2) ? 100 : 12)
    const placing: Placing = { blockSize, length, found, reached, seen, saltFrom, named, slots }
    const interval = Math.ceil(longest(placing) / blockSize) * blockSize
    const positions = checkpointsOf(placing)
    const given: number[] = []
    for (let position = blockSize; position < length; position += blockSize)
      if (position > found && isGiven(position, placing)) given.push(position)
    const all = [Math.floor(found / blockSize) * blockSize, ...positions]
    const holds =
      given.every(position => positions.includes(position)) &&
      positions.every((position, place) => {
        const before = all[place] as number
        return position % blockSize === 0 && position > before && position - before <= interval && position < length
      }) &&
      positions.at(-1) === given.at(-1) &&
      given.every((position, place) => {
        const start = given[place - 1] ?? (all[0] as number)
        const between = positions.filter(other => other > start && other < position).length
        return between === Math.ceil((position - start) / interval) - 1
      })
    if (!holds) return t.fail(`seed ${seed}: ${JSON.stringify({ ...placing, positions })}`)
  }
  t.pass()
})

test('another question about a long text computes at most eight times the tokens behind that text', t => {
  for (let length = 512; length <= 40_000; length = Math.ceil(length * 1.09)) {
    const text = { blockSize: 16, length, found: 0, reached: 0, seen: 0, saltFrom: undefined, named: [], slots: 1000 }
    const positions = checkpointsOf(text)
    for (let question = 1; question <= length / 32; question++) {
      const shared = length - question
      const [deepest = 0] = positions.filter(position => position <= shared).toReversed()
      const most = Math.max(8 * question, 16) + 16
      if (length - deepest > most) return t.fail(`${question} of ${length} tokens: ${length - deepest}`)
    }
  }
  t.pass()
})

test('prompts that were seen: whole blocks in common, apart by salt and extras, until others take their place', t => {
  const seen = new SeenPrompts(4, 16)
  const key = Uint8Array.of(1)
  t.is(seen.add(idsFrom(10), NO_SALT), 0)
  t.is(seen.add(idsFrom(10), NO_SALT), 8)
  t.is(seen.add(idsFrom(7), NO_SALT), 4)
  t.is(seen.add(Uint32Array.of(0, 1, 2, 3, 9, 9, 9, 9), NO_SALT), 4)
  t.is(seen.add(idsFrom(10), { salt: key, saltFrom: 5, extra: undefined }), 4)
  t.is(seen.add(idsFrom(10), { salt: key, saltFrom: 5, extra: undefined }), 8)
  t.is(seen.add(idsFrom(10), { salt: Uint8Array.of(2), saltFrom: 5, extra: undefined }), 4)
  t.is(seen.add(idsFrom(10), { salt: key, saltFrom: 0, extra: undefined }), 0)
  t.is(seen.add(idsFrom(10), { ...NO_SALT, extra: [{ start: 4, end: 5, key }] }), 4)
  t.is(seen.add(idsFrom(3), NO_SALT), 0)
  const few = new SeenPrompts(1, 16)
  t.is(few.add(idsFrom(5), NO_SALT), 0)
  t.is(few.add(idsFrom(5, 100), NO_SALT), 0)
  t.is(few.add(idsFrom(5), NO_SALT), 5)
  for (let round = 1; round < 4; round++) t.is(few.add(idsFrom(8, 1000 * round), NO_SALT), 0)
  t.is(few.add(idsFrom(5), NO_SALT), 0)
})

test('2,000 random prompts have as much in common with those before them as a list of all prompts says', t => {
  const dice = new Dice(7)
  const seen = new SeenPrompts(3)
  const prompts: Uint32Array[] = []
  let common = 0
  for (let round = 0; round < 2000; round++) {
    const ids = Uint32Array.from({ length: dice.roll(20) }, () => dice.roll(2))
    const same = (other: Uint32Array): number => {
      const differs = ids.findIndex((id, at) => id !== other[at])
      return Math.floor(Math.min(differs < 0 ? ids.length : differs, other.length) / 3) * 3
    }
    const most = prompts.reduce((best, other) => Math.max(best, same(other)), 0)
    if (seen.add(ids, NO_SALT) !== most) return t.fail(`prompt ${round}`)
    prompts.push(ids)
    common += most
  }
  t.true(common > 1000)
})

/** A task of a prompt of consecutive ids. */
function taskOf(length: number, computed = 0) {
  const log = new TokenLog(idsFrom(length))
  return { state: { computed, hasTransaction: false, log, names: {}, reached: computed } }
}

test('the steps of a model with states end at its checkpoints, those of other models anywhere', t => {
  const ends = (cuts: Cuts, task: ReturnType<typeof taskOf>): number[] => {
    const positions: number[] = []
    cuts.place(task)
    for (let next = cuts.next(task); next !== undefined; next = cuts.next(task)) {
      task.state.computed += next
      positions.push(task.state.computed)
    }
    return positions
  }
  const cuts = new Cuts(groupsOf('state', 64))
  t.deepEqual(ends(cuts, taskOf(700)), [560, 672, 688])
  // A short turn has no step of its own for its last whole block, unless it is asked again.
  const turns = new Cuts(groupsOf('state', 64))
  for (const positions of [[], [704], [704]]) t.deepEqual(ends(turns, taskOf(720, 600)), positions)
  // The second prompt leaves the first behind 320 tokens.
  const second = taskOf(500)
  second.state.log.cut(325)
  second.state.log.push(new Uint32Array(40).fill(5))
  second.state.log.name([100, 350, 365])
  t.deepEqual(ends(cuts, second), [96, 320, 336, 352])
  // It was preempted, and is computed again.
  second.state.computed = 112
  t.deepEqual(ends(cuts, second), [320, 336, 352])
  const tenant = taskOf(700, 350)
  tenant.state.names = { salt: 'tenant', saltFrom: 401 }
  t.deepEqual(ends(cuts, tenant), [400, 688])
  t.deepEqual(ends(new Cuts(groupsOf('state', 2)), taskOf(4000)), [3984])
  t.deepEqual(ends(cuts, taskOf(1)), [])
  const tried = taskOf(700)
  tried.state.hasTransaction = true
  t.deepEqual(ends(cuts, tried), [], 'no checkpoint is taken in a transaction')
  // Steps of equal length begin where the sequence does, and two tokens may have a position between them.
  t.deepEqual(ends(cuts, taskOf(8000, 3000)), [4976, 6976, 7872, 7984])
  const two = taskOf(17, 15)
  two.state.log.name([16])
  t.deepEqual(ends(cuts, two), [16])
  const shortened = taskOf(700)
  cuts.place(shortened)
  shortened.state.log.cut(cuts.next(shortened) as number)
  t.is(cuts.next(shortened), undefined, 'the step ends there anyway')
  for (const kind of ['full', 'sliding']) t.deepEqual(ends(new Cuts(groupsOf(kind, 64)), taskOf(700)), [])
  using real = new PagedKvCache({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 8 }] }, capacity: 4 })
  t.deepEqual(ends(new Cuts(real), taskOf(700)), [])
})
