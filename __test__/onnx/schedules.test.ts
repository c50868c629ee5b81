// Random schedules: many clients generate, run, cancel, fork, cut and drop at once, on pools that are too small. Each of them has to get what it
// would get alone.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError, type KvTideError } from '../../index.js'
import { type Generation, OnnxModel, type OnnxSequence } from '../../onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { argmax } from '../support/onnx/graphs.js'
import { graphFile } from '../support/onnx/paged-graph.js'
import { alone, Dice, POISON, ToyBackend, toyModel, VOCABULARY } from '../support/onnx/toy-model.js'

/** Logits that are nearer to each other may be in another order in another step. */
const NEAR = 1e-3
const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 10_000)

/** A model, and what it says to each alone. */
interface World {
  readonly model: OnnxModel
  readonly vocabulary: number
  /** A token that no step with it survives. */
  readonly poison: number | undefined
  /** The tokens behind others, up to one of which two are nearly as probable. */
  alone(tokens: readonly number[], count: number): number[] | Promise<number[]>
}

/** What may happen to a client besides getting what it asked for. */
const ALLOWED = new Set(['OUT_OF_BLOCKS', 'ABORTED', 'CANNOT_ROLL_BACK'])

/** How often what happened, over all schedules. */
const seen = new Map<string, number>()
const note = (what: string): void => void seen.set(what, (seen.get(what) ?? 0) + 1)

/** Prompts that begin alike, now and then. */
function promptOf(dice: Dice, vocabulary: number): number[] {
  const length = 1 + dice.roll(dice.once(4) ? 30 : 10)
  const family = dice.roll(3)
  const own = dice.roll(length + 1)
  return Array.from({ length }, (_, place) => (place < length - own ? (family * 5 + place * 3) % (vocabulary - 1) : dice.roll(vocabulary - 1)))
}

/** One who talks to the model, and knows what the tokens of its chat have to be. */
class Client {
  readonly #t: ExecutionContext
  readonly #world: World
  readonly #dice: Dice
  readonly #name: string
  #chat: OnnxSequence
  #tokens: number[]

  constructor(t: ExecutionContext, world: World, dice: Dice, name: string, from?: { chat: OnnxSequence; tokens: number[] }) {
    this.#t = t
    this.#world = world
    this.#dice = dice
    this.#name = name
    this.#tokens = from?.tokens ?? promptOf(dice, world.vocabulary)
    this.#chat = from?.chat ?? world.model.open({ tokens: this.#tokens, salt: dice.once(3) ? 'other' : 'one' })
  }

  async talk(turns: number): Promise<void> {
    for (let turn = 0; turn < turns; turn++) {
      await this.#turn()
      this.#look(`after turn ${turn}`)
    }
    this.#chat.dispose()
  }

  async #turn(): Promise<void> {
    const dice = this.#dice
    await this.#wait()
    if (dice.once(4)) this.#cut()
    if (dice.once(6)) return this.#run()
    if (dice.once(6)) return this.#draft()
    if (dice.once(5)) {
      const chat = this.#chat.fork()
      const other = new Client(this.#t, this.#world, dice, `${this.#name}'`, { chat, tokens: [...this.#tokens] })
      await Promise.all([this.#generate(), other.talk(1)])
      return
    }
    return this.#generate()
  }

  async #generate(needsTokens = false): Promise<void> {
    const [dice, { model, vocabulary, poison }] = [this.#dice, this.#world]
    const more = needsTokens || this.#tokens.length === 0 || dice.once(3) ? promptOf(dice, vocabulary) : []
    const isPoisoned = !needsTokens && poison !== undefined && dice.once(25)
    const poisons = isPoisoned ? [poison] : []
    const maxTokens = 1 + dice.roll(20)
    const breakAt = dice.once(3) ? dice.roll(6) : Infinity
    const abort = dice.once(6) ? new AbortController() : undefined
    const before = [...this.#tokens, ...more, ...poisons]
    const whole = isPoisoned ? [] : await this.#world.alone(before, maxTokens)
    const stop = dice.once(3) ? [whole[dice.roll(20)] ?? dice.roll(vocabulary)] : []
    const generation = model.generate(this.#chat, {
      tokens: [...more, ...poisons], maxTokens, stop,
      ...(dice.once(3) ? { draft: { lookup: 1 + dice.roll(5) } } : {}),
      ...(abort === undefined ? {} : { signal: abort.signal }),
    })
    const end = whole.findIndex(token => stop.includes(token))
    const wanted = end < 0 ? whole : whole.slice(0, end)
    // Behind a token that may be another one, anything may come.
    const isSure = end >= 0 || whole.length === maxTokens
    const got: number[] = []
    try {
      await this.#read(generation, got, breakAt, abort)
      if (got.length < breakAt) {
        this.#t.deepEqual(isSure ? got : got.slice(0, wanted.length), wanted, `${this.#name} got something else`)
        if (isSure) this.#t.is(generation.finishReason, end < 0 ? 'length' : 'stop')
        note(generation.finishReason ?? 'nothing')
      } else note('left')
      this.#t.false(isPoisoned && got.length > 0, 'a poisoned prompt says nothing')
    } catch (error) {
      this.#refused(error, isPoisoned)
    }
    if (!isPoisoned) this.#t.deepEqual(got.slice(0, wanted.length), wanted.slice(0, got.length), `${this.#name} got something else before it ended`)
    this.#tokens = [...before, ...got]
    if (isPoisoned) {
      this.#look('poisoned')
      this.#chat.truncate(before.length - 1)
      this.#tokens = before.slice(0, -1)
    }
  }

  async #read(generation: Generation, got: number[], breakAt: number, abort: AbortController | undefined): Promise<void> {
    if (breakAt === 0) {
      const first = generation.next()
      await this.#wait()
      await generation.return()
      const { done, value } = await first
      if (done !== true) got.push(value)
      return
    }
    for await (const token of generation) {
      got.push(token)
      await this.#wait()
      if (abort !== undefined && this.#dice.once(4)) abort.abort()
      if (got.length === breakAt) break
    }
  }

  async #run(): Promise<void> {
    const { model, vocabulary } = this.#world
    const tokens = promptOf(this.#dice, vocabulary)
    const isAll = this.#dice.once(2)
    try {
      const computed = this.#chat.length
      const [logits] = (await model.run([{ sequence: this.#chat, tokens }], { logits: isAll ? 'all' : 'last' })) as [Float32Array]
      this.#tokens.push(...tokens)
      const rows = isAll ? this.#tokens.length - computed : 1
      this.#t.is(logits.length, rows * vocabulary)
      for (let row = 0; row < rows; row++) {
        const [next] = await this.#world.alone(this.#tokens.slice(0, this.#tokens.length - rows + row + 1), 1)
        if (next !== undefined) this.#t.is(argmax(logits.subarray(row * vocabulary, (row + 1) * vocabulary)), next, 'logits of another sequence')
      }
      note('run')
    } catch (error) {
      this.#refused(error, false)
    }
  }

  /** Something is tried in a transaction, and taken back or kept. */
  async #draft(): Promise<void> {
    const before = [...this.#tokens]
    const draft = this.#chat.begin()
    await this.#generate(true)
    if (this.#dice.once(2)) {
      draft.rollback()
      this.#tokens = before
      note('rolled back')
    } else draft.commit()
  }

  #cut(): void {
    const length = this.#dice.roll(this.#tokens.length + 1)
    try {
      this.#chat.truncate(length)
    } catch (error) {
      return this.#refused(error, false)
    }
    this.#tokens.length = length
  }

  #refused(error: unknown, isPoisoned: boolean): void {
    const { code } = error as KvTideError
    const isAllowed = (isKvTideError(error) && ALLOWED.has(code)) || (isPoisoned && (error as Error).message === 'poison')
    if (!isAllowed) throw error
    note(isKvTideError(error) ? code : 'poison')
  }

  #look(when: string): void {
    this.#t.deepEqual([...this.#chat.tokens], this.#tokens, `${this.#name} has other tokens ${when}`)
  }

  async #wait(): Promise<void> {
    for (let turn = this.#dice.roll(this.#dice.once(4) ? 40 : 3); turn > 0; turn--) await Promise.resolve()
  }
}

/** Clients of one model, all at once. */
async function talk(t: ExecutionContext, world: World, dice: Dice, name: string): Promise<void> {
  const clients = Array.from({ length: 1 + dice.roll(5) }, (_, place) => new Client(t, world, dice, `${name}, client ${place}`))
  await Promise.all(clients.map(client => client.talk(1 + dice.roll(4))))
  const { cache } = world.model
  t.is(cache.freeCount, cache.totalCount, `${name}: blocks are left`)
  cache.checkInvariants()
}

async function schedule(t: ExecutionContext, seed: number, window?: number): Promise<void> {
  const dice = new Dice(seed)
  const sizes = { capacity: 12 + dice.roll(60), stepTokens: 4 + dice.roll(20), sequences: 1 + dice.roll(8) }
  const backend = new ToyBackend(dice, window === undefined ? {} : { window })
  const model = toyModel(backend, window === undefined ? sizes : { ...sizes, window })
  const world = { model, vocabulary: VOCABULARY, poison: POISON, alone: (tokens: readonly number[], count: number) => alone(tokens, count, Infinity, window) }
  await talk(t, world, dice, `seed ${seed}`)
  t.false(backend.isComputing)
  model.cache.forgetPrefixes()
  await model.dispose()
}

const ALL = ['length', 'stop', 'left', 'run', 'rolled back', 'ABORTED', 'OUT_OF_BLOCKS']

async function schedules(t: ExecutionContext, count: number, run: (seed: number) => Promise<void>, all: readonly string[] = ALL): Promise<void> {
  seen.clear()
  for (let seed = 1; seed <= count; seed++) {
    try {
      await run(seed)
    } catch (error) {
      t.log(`seed ${seed}`)
      throw error
    }
    if (!t.passed) return
  }
  t.log(Object.fromEntries(seen))
  for (const what of all) t.true((seen.get(what) ?? 0) > count / 100, what)
}

test.serial('random schedules give what each gets alone', async t => {
  await schedules(t, CASES, seed => schedule(t, seed), [...ALL, 'poison'])
})

test.serial('random schedules over layers with a window', async t => {
  await schedules(t, Math.ceil(CASES / 5), seed => schedule(t, seed, 1 + (seed % 12)), [...ALL, 'poison', 'CANNOT_ROLL_BACK'])
})

/** A whole model, and what it says to each alone: on another one, from the start. */
async function wholeModel(): Promise<World & AsyncDisposable> {
  const [model, other] = await Promise.all([48, 400].map(capacity => OnnxModel.load(graphFile('onnx'), { backend: 'graph', threads: 1, maxStepTokens: 24, cache: { capacity, blockSize: 4 } }))) as [OnnxModel, OnnxModel]
  let name = 0
  return {
    model, vocabulary: 320, poison: undefined,
    alone: async (tokens, count) => {
      using sequence = other.open({ tokens, salt: `${name++}` })
      const found: number[] = []
      const generation = other.generate(sequence, { maxTokens: count, logprobs: 2 })
      for await (const token of generation) {
        const [first, second] = generation.logprobs?.top ?? []
        if ((first?.logprob ?? 0) - (second?.logprob ?? 0) < NEAR) break
        found.push(token)
      }
      return found
    },
    [Symbol.asyncDispose]: async () => void await Promise.all([model.dispose(), other.dispose()]),
  }
}

onnxTest('random schedules over a whole model', async t => {
  await using world = await wholeModel()
  await schedules(t, Math.max(20, Math.ceil(CASES / 200)), seed => talk(t, world, new Dice(seed), `seed ${seed}`), ['length', 'stop', 'left', 'run', 'rolled back', 'ABORTED'])
})
