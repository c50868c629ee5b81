// Which tokens a step computes: a simulation of the choice alone, without a model. Nobody waits for one that arrived later.
import test from 'ava'

import { admit, sharesOf } from '../../lib/onnx/policy.js'
import { Dice } from '../support/onnx/toy-model.js'

/** A task that needs a block for each four tokens it has computed. */
class Simulated {
  readonly arrival: number
  readonly length: number
  known: number
  readonly drafts = 0
  computed = 0
  isAdmitted = false
  rests = 0

  constructor(arrival: number, prompt: number, generated: number) {
    this.arrival = arrival
    this.length = prompt + generated
    this.known = prompt
  }

  get pending(): number {
    return this.rests > 0 ? 0 : this.known - this.computed
  }

  blocks(more = 0): number {
    return Math.ceil((this.computed + more) / 4)
  }
}

const candidate = (pending: number, drafts = 0, isAdmitted = true) => ({ pending, drafts, isAdmitted })

test('shares: one token of each that decodes first, then prompts in order, within the budget', t => {
  t.deepEqual(sharesOf([candidate(5), candidate(1), candidate(7), candidate(1, 3), candidate(0)], 8), [
    { place: 1, tokens: 1, drafts: 0 },
    { place: 3, tokens: 1, drafts: 3 },
    { place: 0, tokens: 3, drafts: 0 },
  ])
  t.deepEqual(sharesOf([candidate(1), candidate(1), candidate(1)], 2).map(({ place }) => place), [0, 1])
  t.deepEqual(sharesOf([candidate(9, 0, false), candidate(2)], 4), [{ place: 1, tokens: 2, drafts: 0 }])
  t.deepEqual(sharesOf([candidate(0), candidate(0)], 4), [])
})

function simulate(dice: Dice): { steps: number; preemptions: number; overtaken: number } {
  const [capacity, budget, most] = [8 + dice.roll(40), 1 + dice.roll(16), 1 + dice.roll(8)]
  let waiting: Simulated[] = []
  const found = { steps: 0, preemptions: 0, overtaken: 0 }
  let left = 1 + dice.roll(20)
  for (let arrival = 0; left > 0 || waiting.length > 0; found.steps++) {
    if (left > 0 && dice.once(3)) {
      left -= 1
      waiting.push(new Simulated(arrival++, 1 + dice.roll(20), 1 + dice.roll(8)))
    }
    const free = () => capacity - waiting.reduce((sum, task) => sum + task.blocks(), 0)
    const preempt = (place: number): boolean => {
      const task = waiting[place] as Simulated
      task.computed = 0
      task.isAdmitted = false
      found.preemptions += 1
      return true
    }
    admit(waiting, most, {
      hasRoom: place => free() >= (waiting[place] as Simulated).blocks((waiting[place] as Simulated).pending) + waiting.reduce((sum, task) => sum + (task.isAdmitted ? 1 + Math.ceil(task.pending / 4) : 0), 0),
      admit: place => {
        ;(waiting[place] as Simulated).isAdmitted = true
      },
      preempt,
    })
    // Nobody takes part while one that arrived before waits and could be computed.
    const first = waiting.findIndex(task => !task.isAdmitted && task.pending > 0)
    if (first >= 0 && waiting.slice(first).some(task => task.isAdmitted)) found.overtaken += 1
    const shares = sharesOf(waiting, budget)
    const needed = shares.reduce((sum, { place, tokens }) => sum + (waiting[place] as Simulated).blocks(tokens) - (waiting[place] as Simulated).blocks(), 0)
    if (needed > free()) {
      const youngest = waiting.findLastIndex(task => task.isAdmitted)
      if (waiting.filter(task => task.isAdmitted).length > 1) preempt(youngest)
      else waiting.splice(youngest, 1)
      continue
    }
    for (const { place, tokens } of shares) {
      const task = waiting[place] as Simulated
      task.computed += tokens
      if (task.computed === task.known && task.known < task.length) task.known += 1
    }
    waiting = waiting.filter(task => task.computed < task.length)
    for (const task of waiting) task.rests = task.rests > 0 ? task.rests - 1 : dice.once(20) ? dice.roll(10) : 0
    if (found.steps > 20_000) throw new Error('it does not end')
  }
  return found
}

test('10,000 random arrivals all end, and nobody waits for one that arrived later', t => {
  let preemptions = 0
  for (let seed = 1; seed <= 10_000; seed++) {
    const found = simulate(new Dice(seed))
    preemptions += found.preemptions
    if (found.overtaken > 0) t.fail(`seed ${seed}: ${found.overtaken} times`)
    if (!t.passed) return
  }
  t.true(preemptions > 1000)
})
