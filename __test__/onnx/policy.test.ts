// Which tokens a step computes: a simulation of the choice alone, without a model. No task waits for one that arrived later.
import test from 'ava'

import { admit, type Candidate, type Share, sharesOf } from '../../lib/onnx/policy.js'
import { Dice } from '../support/onnx/toy-model.js'

/** A task that needs a block for each four tokens it has computed. */
class Simulated {
  readonly arrival: number
  readonly length: number
  known: number
  computed = 0
  isAdmitted = false
  rests = 0
  isRefused = false
  /** Its blocks cannot be taken: a transaction is open. */
  readonly isFixed: boolean
  /** Positions of its prompt at which a step has to end, ascending. */
  readonly cuts: readonly number[]
  /** The maximum number of tokens that it drafts at once. */
  readonly draftsMax: number

  constructor(
    arrival: number,
    prompt: number,
    generated: number,
    {
      isFixed,
      computed,
      cuts,
      draftsMax,
    }: { isFixed: boolean; computed: number; cuts: readonly number[]; draftsMax: number },
  ) {
    this.arrival = arrival
    this.isFixed = isFixed
    this.length = prompt + generated
    this.known = prompt
    this.computed = computed
    this.cuts = cuts
    this.draftsMax = draftsMax
  }

  /** The number of drafted tokens: none behind the last one. */
  get drafts(): number {
    return Math.min(this.draftsMax, Math.max(0, this.length - this.known - 1))
  }

  get nextCut(): number | undefined {
    const next = this.cuts.find(cut => cut > this.computed)
    return next === undefined ? undefined : next - this.computed
  }

  get isHolding(): boolean {
    return this.isAdmitted || this.computed > 0
  }

  get pending(): number {
    return this.rests > 0 ? 0 : this.known - this.computed
  }

  blocks(more = 0): number {
    return Math.ceil((this.computed + more) / 4)
  }
}

const candidate = (pending: number, drafts = 0, isAdmitted = true, nextCut?: number) => ({
  pending,
  drafts,
  isAdmitted,
  isHolding: isAdmitted,
  nextCut,
})

test('shares: one token of each that decodes first, then prompts in order, within the budget', t => {
  t.deepEqual(sharesOf([candidate(5), candidate(1), candidate(7), candidate(1, 3), candidate(0)], 8), [
    { place: 1, tokens: 1, drafts: 0 },
    { place: 3, tokens: 1, drafts: 3 },
    { place: 0, tokens: 3, drafts: 0 },
  ])
  t.deepEqual(
    sharesOf([candidate(1), candidate(1), candidate(1)], 2).map(({ place }) => place),
    [0, 1],
  )
  t.deepEqual(sharesOf([candidate(9, 0, false), candidate(2)], 4), [{ place: 1, tokens: 2, drafts: 0 }])
  t.deepEqual(sharesOf([candidate(0), candidate(0)], 4), [])
})

const sharesWithin = (budget: number, ...candidates: Candidate[]): number[][] =>
  sharesOf(candidates, budget).map(({ place, tokens, drafts }) => [place, tokens, drafts])

test('drafts leave at least half of the budget behind decoding to prompts, as far as these need it', t => {
  const eight = Array.from({ length: 8 }, () => candidate(1, 8))
  const filled = sharesWithin(64, ...eight, candidate(10))
  t.deepEqual(filled.at(-1), [8, 10, 0])
  t.is(
    filled.reduce((sum, [, tokens = 0, drafts = 0]) => sum + tokens + drafts, 0),
    64,
  )
  t.deepEqual(sharesWithin(64, ...eight, candidate(100)).at(-1), [8, 28, 0])
  t.deepEqual(sharesWithin(2, candidate(1, 8), candidate(10)), [
    [0, 1, 0],
    [1, 1, 0],
  ])
  // A prompt that is not computed in this step leaves its tokens to drafts.
  t.deepEqual(sharesWithin(8, candidate(1, 8), { ...candidate(10), isWaiting: true }), [[0, 1, 7]])
  t.deepEqual(sharesWithin(8, candidate(1, 8), candidate(10, 0, true, 2)), [
    [0, 1, 5],
    [1, 2, 0],
  ])
})

test('drafts are asked for only while a candidate decodes and the budget has room', t => {
  const asked: number[] = []
  const asking = (place: number, pending: number) => ({
    ...candidate(pending),
    get drafts() {
      asked.push(place)
      return 3
    },
  })
  const candidates = [asking(0, 0), asking(1, 4), asking(2, 1), asking(3, 1), asking(4, 1)]
  t.is(sharesOf(candidates, 9).length, 4)
  // Of six tokens, prompts have three, and those that the first one drafts are the other three.
  t.deepEqual(asked, [2])
})

test('a candidate that was refused is not admitted in the same round, even if a later one makes room', t => {
  const candidates = [{ ...candidate(3, 0, false), isHolding: true }, candidate(2, 0, false)]
  const calls: string[] = []
  let hasReclaimed = false
  admit(candidates, 4, {
    hasRoom: place => place === 0 && hasReclaimed,
    admit: place => calls.push(`admit ${place}`),
    preempt: () => false,
    // What the refused one leaves is there for those behind it.
    reclaim: () => calls.length > 0 && !hasReclaimed && (hasReclaimed = true),
    refuse: place => calls.push(`refuse ${place}`) > 0,
  })
  t.deepEqual(calls, ['refuse 0', 'refuse 1'])
})

test('a share ends at the next cut, and what it leaves goes to the prompts behind it', t => {
  const shares = (...candidates: ReturnType<typeof candidate>[]): number[][] =>
    sharesOf(candidates, 10).map(({ place, tokens }) => [place, tokens])
  t.deepEqual(shares(candidate(20, 0, true, 4), candidate(20, 0, true, 5), candidate(20)), [
    [0, 4],
    [1, 5],
    [2, 1],
  ])
  t.deepEqual(shares(candidate(20, 0, true, 12), candidate(20, 0, true, 1)), [[0, 10]])
  t.deepEqual(shares(candidate(7, 0, true, 9), candidate(1), candidate(5, 0, true, 1)), [
    [1, 1],
    [0, 7],
    [2, 1],
  ])
})

/** Blocks that owners keep behind the end of their tasks, or that may be reclaimed. */
class Kept {
  blocks = 0
  spare = 0
}

class Simulation {
  readonly found = {
    steps: 0,
    preemptions: 0,
    overtaken: 0,
    refused: 0,
    wrong: 0,
    cuts: 0,
    uncut: 0,
    overspent: 0,
    drafts: 0,
    starved: 0,
  }
  readonly #dice: Dice
  readonly #capacity: number
  readonly #budget: number
  readonly #most: number
  readonly #kept = new Kept()
  /** In how many prompts out of three positions are wanted. */
  readonly #cutting: number
  #waiting: Simulated[] = []

  constructor(dice: Dice) {
    this.#dice = dice
    ;[this.#capacity, this.#budget, this.#most] = [4 + dice.roll(40), 1 + dice.roll(16), 1 + dice.roll(8)]
    this.#cutting = dice.roll(4)
  }

  run(): this {
    const dice = this.#dice
    let left = 1 + dice.roll(20)
    for (let arrival = 0; left > 0 || this.#waiting.length > 0; this.found.steps++) {
      if (left > 0 && dice.once(3)) {
        left -= 1
        this.#arrive(arrival++)
      }
      this.#admit()
      // No task takes part while one that arrived before waits and could be computed.
      const first = this.#waiting.findIndex(task => !task.isAdmitted && task.pending > 0)
      if (first >= 0 && this.#waiting.slice(first).some(task => task.isAdmitted && !task.isFixed))
        this.found.overtaken += 1
      this.#step()
      for (const task of this.#waiting) task.rests = task.rests > 0 ? task.rests - 1 : dice.once(20) ? dice.roll(10) : 0
      if (dice.once(4)) this.#kept.blocks = 0
      if (this.found.steps > 20_000) throw new Error('it does not end')
    }
    return this
  }

  /** A task arrives. In a transaction, some of its tokens are computed already, and it has their blocks. */
  #arrive(arrival: number): void {
    const dice = this.#dice
    const [prompt, isFixed] = [1 + dice.roll(dice.once(10) ? 80 : 20), dice.once(8)]
    const computed = isFixed ? Math.min(dice.roll(prompt), 4 * this.#free) : 0
    const isCut = dice.roll(3) < this.#cutting
    const cuts = Array.from({ length: prompt - 1 }, (_, place) => place + 1).filter(() => isCut && dice.once(5))
    const draftsMax = dice.once(3) ? dice.roll(20) : 0
    const rest = { isFixed, computed: Math.max(0, computed), cuts, draftsMax }
    this.#waiting.push(new Simulated(arrival, prompt, 1 + dice.roll(8), rest))
  }

  get #free(): number {
    return (
      this.#capacity -
      this.#kept.blocks -
      this.#kept.spare -
      this.#waiting.reduce((sum, task) => sum + task.blocks(), 0)
    )
  }

  #preempt(task: Simulated): boolean {
    if (task.isFixed) return false
    task.computed = 0
    task.isAdmitted = false
    this.found.preemptions += 1
    return true
  }

  #reclaim(): boolean {
    const had = this.#kept.spare > 0
    this.#kept.spare = 0
    return had
  }

  #admit(): void {
    const at = (place: number): Simulated => this.#waiting[place] as Simulated
    admit(this.#waiting, this.#most, {
      hasRoom: (place, isAlone) => {
        const task = at(place)
        const beside = isAlone
          ? 0
          : this.#waiting.reduce(
              (sum, other) => sum + (other.isAdmitted ? 1 + other.blocks(other.pending) - other.blocks() : 0),
              0,
            )
        return this.#free >= task.blocks(task.pending) - task.blocks() + beside
      },
      admit: place => {
        at(place).isAdmitted = true
      },
      preempt: place => this.#preempt(at(place)),
      reclaim: () => this.#reclaim(),
      refuse: place => this.#refuse(at(place)),
    })
    this.#waiting = this.#waiting.filter(task => !task.isRefused)
  }

  #refuse(task: Simulated): boolean {
    // Only a task in a transaction may be refused for other transactions.
    const fixed = this.#waiting.filter(other => other !== task && other.isFixed && task.isFixed)
    const [needed, held] = [task.blocks(task.pending), fixed.reduce((sum, other) => sum + other.blocks(), 0)]
    if (needed <= this.#capacity - this.#kept.blocks - held || this.#waiting.some(other => other.isAdmitted))
      this.found.wrong += 1
    this.found.refused += 1
    task.isRefused = true
    task.isAdmitted = false
    task.computed = 0
    return true
  }

  #step(): void {
    const shares = sharesOf(this.#waiting, this.#budget)
    const needed = shares.reduce(
      (sum, { place, tokens }) =>
        sum + (this.#waiting[place] as Simulated).blocks(tokens) - (this.#waiting[place] as Simulated).blocks(),
      0,
    )
    if (needed > this.#free) {
      this.#makeRoom()
      return
    }
    const spent = shares.reduce((sum, { tokens, drafts }) => sum + tokens + drafts, 0)
    if (spent > this.#budget) this.found.overspent += 1
    this.#checkPrompts(shares)
    for (const { place, tokens } of shares) {
      const task = this.#waiting[place] as Simulated
      this.#checkEnd(task, task.computed + tokens, spent)
      task.computed += tokens
      if (task.computed === task.known && task.known < task.length) task.known += 1
    }
    for (const task of this.#waiting) {
      if (task.computed < task.length) continue
      const owner = this.#dice.roll(3)
      if (owner === 0) this.#kept.blocks += task.blocks()
      if (owner === 1) this.#kept.spare += task.blocks()
    }
    this.#waiting = this.#waiting.filter(task => task.computed < task.length)
  }

  /** Decoding may take the whole budget. Drafts leave half of the rest to prompts, or as much as these need. */
  #checkPrompts(shares: readonly Share[]): void {
    const admitted = this.#waiting.filter(({ isAdmitted }) => isAdmitted)
    const decoding = admitted.filter(({ pending }) => pending === 1).length
    const prompts = admitted.filter(({ pending }) => pending > 1)
    const wanted = prompts.reduce((sum, { pending, nextCut = pending }) => sum + Math.min(pending, nextCut), 0)
    const given = shares.reduce((sum, { place, tokens }) => {
      const task = this.#waiting[place] as Simulated
      return sum + (task.pending > 1 ? tokens : 0)
    }, 0)
    if (given < Math.min(wanted, Math.ceil((this.#budget - decoding) / 2))) this.found.starved += 1
    this.found.drafts += shares.reduce((sum, { drafts }) => sum + drafts, 0)
  }

  /** A step must not pass a cut, and ends for a cut, the budget or the end of what is known, and nothing else. */
  #checkEnd(task: Simulated, end: number, spent: number): void {
    const isPassed = task.cuts.some(cut => cut > task.computed && cut < end)
    const isCut = task.cuts.includes(end)
    if (isCut) this.found.cuts += 1
    if (isPassed || (!isCut && end < task.known && spent < this.#budget)) this.found.uncut += 1
  }

  #makeRoom(): void {
    if (this.#reclaim()) return
    const [oldest, ...others] = this.#waiting.filter(task => task.isAdmitted || task.computed > 0) as [
      Simulated,
      ...Simulated[],
    ]
    if (others.toReversed().some(task => this.#preempt(task))) return
    if (others.length > 0 && this.#preempt(oldest)) return
    this.#waiting = this.#waiting.filter(task => task !== (others.at(-1) ?? oldest))
  }
}

test('10,000 random arrivals all end, no task waits for one that arrived later, none is refused that fits beside what others keep, steps end at cuts, and drafts starve no prompt', t => {
  let [preemptions, refused, cuts, drafts] = [0, 0, 0, 0]
  for (let seed = 1; seed <= 10_000; seed++) {
    const { found } = new Simulation(new Dice(seed)).run()
    preemptions += found.preemptions
    refused += found.refused
    cuts += found.cuts
    drafts += found.drafts
    if (found.overtaken > 0) t.fail(`seed ${seed}: ${found.overtaken} times`)
    if (found.wrong > 0) t.fail(`seed ${seed}: ${found.wrong} refused that fit`)
    if (found.uncut + found.overspent > 0) t.fail(`seed ${seed}: ${found.uncut} steps, ${found.overspent} too long`)
    if (found.starved > 0) t.fail(`seed ${seed}: drafts left too little to prompts in ${found.starved} steps`)
    if (!t.passed) return
  }
  t.true(cuts > 10_000)
  t.true(drafts > 10_000)
  t.true(preemptions > 1000)
  t.true(refused > 1000)
})
