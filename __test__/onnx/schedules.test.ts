// Random schedules: many clients generate, run, cancel, fork, cut and drop at once, on pools that are too small. Each of them has to get what it
// would get alone.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError, type KvTideError } from '../../index.js'
import type { Generation, OnnxModel, OnnxSequence } from '../../onnx.js'
import { alone, Dice, POISON, ToyBackend, toyModel, VOCABULARY } from '../support/onnx/toy-model.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 10_000)

/** What may happen to a client besides getting what it asked for. */
const ALLOWED = new Set(['OUT_OF_BLOCKS', 'ABORTED'])

/** How often what happened, over all schedules. */
const seen = new Map<string, number>()
const note = (what: string): void => void seen.set(what, (seen.get(what) ?? 0) + 1)

/** Prompts that begin alike, now and then. */
function promptOf(dice: Dice): number[] {
  const length = 1 + dice.roll(dice.once(4) ? 30 : 10)
  const family = dice.roll(3)
  const own = dice.roll(length + 1)
  return Array.from({ length }, (_, place) => (place < length - own ? (family * 5 + place * 3) % (VOCABULARY - 1) : dice.roll(VOCABULARY - 1)))
}

/** One who talks to the model, and knows what the tokens of its chat have to be. */
class Client {
  readonly #t: ExecutionContext
  readonly #model: OnnxModel
  readonly #dice: Dice
  readonly #name: string
  #chat: OnnxSequence
  #tokens: number[]

  constructor(t: ExecutionContext, model: OnnxModel, dice: Dice, name: string, from?: { chat: OnnxSequence; tokens: number[] }) {
    this.#t = t
    this.#model = model
    this.#dice = dice
    this.#name = name
    this.#tokens = from?.tokens ?? promptOf(dice)
    this.#chat = from?.chat ?? model.open({ tokens: this.#tokens, salt: dice.once(3) ? 'other' : 'one' })
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
      const other = new Client(this.#t, this.#model, dice, `${this.#name}'`, { chat, tokens: [...this.#tokens] })
      await Promise.all([this.#generate(), other.talk(1)])
      return
    }
    return this.#generate()
  }

  async #generate(needsTokens = false): Promise<void> {
    const dice = this.#dice
    const more = needsTokens || this.#tokens.length === 0 || dice.once(3) ? promptOf(dice) : []
    const isPoisoned = !needsTokens && dice.once(25)
    const maxTokens = 1 + dice.roll(20)
    const stop = dice.once(3) ? [dice.roll(VOCABULARY - 1)] : []
    const breakAt = dice.once(3) ? dice.roll(6) : Infinity
    const abort = dice.once(6) ? new AbortController() : undefined
    const before = [...this.#tokens, ...more, ...(isPoisoned ? [POISON] : [])]
    const generation = this.#model.generate(this.#chat, {
      tokens: [...more, ...(isPoisoned ? [POISON] : [])], maxTokens, stop,
      ...(dice.once(3) ? { draft: { lookup: 1 + dice.roll(5) } } : {}),
      ...(abort === undefined ? {} : { signal: abort.signal }),
    })
    const whole = alone(before, maxTokens)
    const end = whole.findIndex(token => stop.includes(token))
    const wanted = end < 0 ? whole : whole.slice(0, end)
    const got: number[] = []
    try {
      await this.#read(generation, got, breakAt, abort)
      if (got.length < breakAt) {
        this.#t.deepEqual(got, wanted, `${this.#name} got something else`)
        this.#t.is(generation.finishReason, end < 0 ? 'length' : 'stop')
        note(end < 0 ? 'length' : 'stop')
      } else note('left')
      this.#t.false(isPoisoned && got.length > 0, 'a poisoned prompt says nothing')
    } catch (error) {
      this.#refused(error, isPoisoned)
    }
    this.#t.deepEqual(got, wanted.slice(0, got.length), `${this.#name} got something else before it ended`)
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
    const tokens = promptOf(this.#dice)
    const isAll = this.#dice.once(2)
    try {
      const computed = this.#chat.length
      const [logits] = (await this.#model.run([{ sequence: this.#chat, tokens }], { logits: isAll ? 'all' : 'last' })) as [Float32Array]
      this.#tokens.push(...tokens)
      const rows = isAll ? this.#tokens.length - computed : 1
      this.#t.is(logits.length, rows * VOCABULARY)
      for (let row = 0; row < rows; row++) {
        const [next] = alone(this.#tokens.slice(0, this.#tokens.length - rows + row + 1), 1)
        this.#t.is(logits.indexOf(1, row * VOCABULARY), row * VOCABULARY + (next as number), 'logits of another sequence')
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
    this.#chat.truncate(length)
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

async function schedule(t: ExecutionContext, seed: number): Promise<void> {
  const dice = new Dice(seed)
  const backend = new ToyBackend(dice)
  const model = toyModel(backend, { capacity: 12 + dice.roll(60), stepTokens: 4 + dice.roll(20), sequences: 1 + dice.roll(8) })
  const clients = Array.from({ length: 1 + dice.roll(5) }, (_, place) => new Client(t, model, dice, `seed ${seed}, client ${place}`))
  await Promise.all(clients.map(client => client.talk(1 + dice.roll(4))))
  t.false(backend.isComputing)
  const { cache } = model
  t.is(cache.freeCount, cache.totalCount, `seed ${seed}: blocks are left`)
  cache.forgetPrefixes()
  await model.dispose()
}

test('random schedules give what each gets alone', async t => {
  for (let seed = 1; seed <= CASES; seed++) {
    try {
      await schedule(t, seed)
    } catch (error) {
      t.log(`seed ${seed}`)
      throw error
    }
    if (!t.passed) return
  }
  t.log(Object.fromEntries(seen))
  for (const what of ['length', 'stop', 'left', 'run', 'rolled back', 'ABORTED', 'OUT_OF_BLOCKS', 'poison']) t.true((seen.get(what) ?? 0) > CASES / 100, what)
})
