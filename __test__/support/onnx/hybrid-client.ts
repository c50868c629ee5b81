// A client of a model whose layers keep states: it does everything that a sequence can do, in any order, and checks that it gets what it would get alone. Calls may
// be refused for want of room here; schedule-client.ts checks that none is refused that has room.
import { isKvTideError, type Transaction } from '../../../index.js'
import type { OnnxModel, OnnxSequence } from '../../../onnx.js'
import { argmax } from './graphs.js'
import { note, turns, type World } from './schedules.js'

/** Models of the same layers, which share tiers and exchange files, and what they say. */
export interface HybridWorld extends Omit<World, 'model'> {
  readonly models: readonly OnnxModel[]
  /** A model that drafts for them. */
  readonly drafts: OnnxModel
  /** Logits of a token. Ids of tokens are below the last one, which no step survives. */
  readonly vocabulary: number
  /** True for the error of a step with the last token. */
  readonly isPoison: (error: unknown) => boolean
  /** True if layers have a window, behind which a sequence cannot always be truncated. */
  readonly hasWindow: boolean
  /** True if blocks may be in tiers. */
  readonly hasTiers: boolean
  /** The bytes of the states after these tokens, if they are known. */
  readonly statesAfter?: ((tokens: readonly number[]) => Uint8Array) | undefined
}

/** Codes of errors that a client may get instead of what it asked for. */
const ALLOWED = new Set(['OUT_OF_BLOCKS', 'ABORTED'])

/** The tokens that tenants share, for clients with the salt `tenant`. */
const SHARED = 6

const drawnDeeds = new WeakMap<HybridWorld, ReadonlySet<string>>()

/** The deeds of a world: about half of those that there are, because what goes wrong often needs a few of them in turn. */
function deedsOf(world: HybridWorld, all: readonly string[]): ReadonlySet<string> {
  const drawn = drawnDeeds.get(world) ?? new Set([...all.filter(() => world.dice.once(2)), 'generate'])
  drawnDeeds.set(world, drawn)
  return drawn
}

export class HybridClient {
  readonly #world: HybridWorld
  readonly #name: string
  readonly #salt: { readonly salt: string; readonly saltFrom?: number }
  #model: OnnxModel
  #chat: OnnxSequence
  #tokens: number[]

  /** A client with a prompt, or with a fork of another client's sequence. */
  constructor(world: HybridWorld, name: string, from?: HybridClient) {
    this.#world = world
    this.#name = name
    if (from === undefined) {
      const { dice, models } = world
      this.#salt = dice.once(3) ? { salt: 'tenant', saltFrom: SHARED } : { salt: 'one' }
      this.#model = models[dice.roll(models.length)] as OnnxModel
      this.#tokens = this.#prompt(dice.once(2) ? 60 : 20)
      this.#chat = this.#open()
      return
    }
    this.#salt = from.#salt
    this.#model = from.#model
    this.#tokens = [...from.#tokens]
    this.#chat = from.#chat.fork()
  }

  async talk(count: number): Promise<void> {
    this.#look('at the start')
    for (let turn = 0; turn < count && this.#world.t.passed; turn++) {
      await turns(this.#world.dice)
      const deed = await this.#turn()
      this.#look(`after turn ${turn}, ${deed}`)
    }
    this.#chat.dispose()
  }

  async #turn(): Promise<string> {
    const deeds: Readonly<Record<string, readonly [times: number, deed: () => Promise<void> | void]>> = {
      generate: [6, () => this.#generate()],
      run: [4, () => this.#run(this.#prompt(40))],
      truncate: [6, () => this.#truncate()],
      resume: [2, () => this.#resume()],
      fork: [2, () => this.#fork()],
      restore: [2, () => this.#restore()],
      transact: [3, () => this.#transact()],
      reload: [2, () => this.#reload()],
      exchange: [1, () => this.#exchange()],
      abandon: [2, () => this.#abandon()],
      reopen: [2, () => this.#reopen()],
      retain: [1, () => this.#retain()],
      poison: [1, () => this.#poison()],
    }
    const isDone = deedsOf(this.#world, Object.keys(deeds))
    const all = Object.entries(deeds).flatMap(([name, [times]]) =>
      Array.from({ length: isDone.has(name) ? times : 0 }, () => name),
    )
    const name = all[this.#world.dice.roll(all.length)] as string
    await deeds[name]?.[1]()
    return name
  }

  /** Prompts that begin alike, now and then. */
  #prompt(most: number): number[] {
    const { dice, vocabulary } = this.#world
    const [length, family] = [1 + dice.roll(dice.once(3) ? most : 9), dice.roll(3)]
    const own = dice.roll(length + 1)
    return Array.from({ length }, (_, place) =>
      place < length - own ? (family * 5 + place * 3) % (vocabulary - 1) : dice.roll(vocabulary - 1),
    )
  }

  /** Positions that the caller names, up to the end of a prompt. */
  #checkpoints(length: number): { readonly checkpoints?: readonly number[] } {
    const { dice } = this.#world
    if (!dice.once(2)) return {}
    return { checkpoints: Array.from({ length }, (_, at) => at + 1).filter(() => dice.once(5)) }
  }

  #open(): OnnxSequence {
    const { dice } = this.#world
    const tokens = this.#tokens
    if (dice.once(4)) {
      const { sequence } = this.#model.admit(tokens, { ...this.#salt, answerTokens: dice.roll(8) })
      note(sequence === undefined ? 'not admitted' : 'admitted')
      if (sequence !== undefined) return sequence
    }
    const chat = this.#model.open({ tokens, ...this.#salt, ...this.#checkpoints(tokens.length) })
    if (chat.length > 0) note('found')
    return chat
  }

  async #generate(needsTokens = this.#tokens.length === 0): Promise<void> {
    const { t, dice, name, drafts, says } = this.#world
    const tokens = needsTokens || dice.once(3) ? this.#prompt(16) : []
    const before = [...this.#tokens, ...tokens]
    const [maxTokens, breakAt] = [1 + dice.roll(dice.once(3) ? 16 : 5), dice.once(4) ? dice.roll(6) : Infinity]
    const abort = dice.once(8) ? new AbortController() : undefined
    const most = 1 + dice.roll(5)
    const draft = [undefined, undefined, { lookup: most }, { model: drafts, tokens: most }][dice.roll(4)]
    const [wanted, got] = [says(before, maxTokens), [] as number[]]
    const generation = this.#model.generate(this.#chat, {
      tokens,
      maxTokens,
      ...this.#checkpoints(before.length),
      ...(abort === undefined ? {} : { signal: abort.signal }),
      ...(draft === undefined ? {} : { draft }),
    })
    try {
      for await (const token of generation) {
        got.push(token)
        if (dice.once(3)) await turns(dice)
        if (dice.once(6)) abort?.abort()
        if (got.length >= breakAt) break
      }
      if (got.length < breakAt) t.is(got.length, maxTokens, `${name}, ${this.#name}`)
      note(draft === undefined ? 'generated' : 'drafted')
    } catch (error) {
      this.#refused(error)
    }
    t.deepEqual(got, wanted.slice(0, got.length), `${name}, ${this.#name} says something else`)
    this.#tokens = [...before, ...got]
  }

  async #run(tokens: readonly number[]): Promise<void> {
    const { t, dice, name, says, vocabulary } = this.#world
    const logits = dice.once(2) ? 'all' : 'last'
    try {
      const named = this.#checkpoints(this.#tokens.length + tokens.length)
      const entry = { sequence: this.#chat, tokens, ...named }
      const [rows] = (await this.#model.run([entry], { logits })) as [Float32Array]
      this.#tokens.push(...tokens)
      // With all logits, those of tokens that were pending come first.
      for (let back = 0; back < (logits === 'all' ? tokens.length : 1); back++) {
        const end = rows.length - back * vocabulary
        const [next] = says(this.#tokens.slice(0, this.#tokens.length - back), 1)
        t.is(argmax(rows.subarray(end - vocabulary, end)), next as number, `${name}, ${this.#name}: other logits`)
      }
      note('run')
    } catch (error) {
      this.#refused(error)
    }
  }

  #truncate(): void {
    const length = this.#world.dice.roll(this.#tokens.length + 1)
    try {
      this.#chat.truncate(length)
    } catch (error) {
      return this.#refused(error, ...(this.#world.hasWindow ? ['CANNOT_ROLL_BACK'] : []))
    }
    this.#tokens.length = length
    note('truncated')
  }

  #resume(): void {
    const { t, dice, name } = this.#world
    const same = dice.roll(this.#tokens.length + 1)
    this.#tokens = [...this.#tokens.slice(0, same), ...this.#prompt(12)]
    const kept = this.#chat.resume(this.#tokens)
    t.is(kept, this.#chat.length, `${name}, ${this.#name}`)
    note('resumed')
  }

  async #fork(): Promise<void> {
    const other = new HybridClient(this.#world, `${this.#name}'`, this)
    await Promise.all([this.#generate(), other.talk(1 + this.#world.dice.roll(6))])
    note('forked')
  }

  async #restore(): Promise<void> {
    using snapshot = this.#chat.snapshot()
    const before = [...this.#tokens]
    await (this.#world.dice.once(2) ? this.#generate() : this.#run(this.#prompt(20)))
    this.#chat.restore(snapshot)
    this.#tokens = before
    note('restored')
  }

  /** A transaction, with another one on top of it now and then: all of its tokens are kept, or none. */
  async #transact(parent?: Transaction): Promise<void> {
    const { t, dice, name } = this.#world
    const [before, computed] = [[...this.#tokens], this.#chat.length]
    const draft = parent === undefined ? this.#chat.begin() : parent.begin()
    for (let deed = dice.roll(3); deed >= 0; deed--) {
      if (dice.once(4)) await this.#transact(draft)
      else await (dice.once(2) ? this.#generate(true) : this.#run(this.#prompt(20)))
      this.#look('in a transaction')
    }
    const { length } = draft
    if (length > 1 && dice.once(2)) {
      const error = t.throws(() => draft.commit(1 + dice.roll(length - 1)))
      t.true(
        isKvTideError(error) && ['CANNOT_ROLL_BACK', 'BUSY'].includes(error.code),
        `${name}, ${this.#name}: ${String(error)}`,
      )
    }
    const kept = dice.roll(4)
    if (kept === 0) {
      draft.rollback()
      this.#tokens = before
    } else if (kept === 1 && length > 0) {
      await this.#whenFree(() => draft.commit(0))
      this.#tokens.length = computed
    } else await this.#whenFree(() => draft.commit())
    note(kept === 0 ? 'rolled back' : 'committed')
  }

  /** Makes a call that may have to quantise pages: between two steps if one is computed. */
  async #whenFree(call: () => void): Promise<void> {
    try {
      call()
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'BUSY') throw error
      await this.#model.between(call)
    }
  }

  /** Saves the sequence, and goes on with what was saved, in one of the models. */
  async #reload(): Promise<void> {
    const bytes = await this.#chat.saveBytes()
    const model = this.#other()
    try {
      const loaded = await model.loadSequence(bytes, this.#salt)
      this.#chat.dispose()
      this.#chat = loaded
      this.#model = model
      note('loaded')
    } catch (error) {
      this.#refused(error)
    }
  }

  /** Gives the prompts of one model to another; now and then, forgets those of one. */
  async #exchange(): Promise<void> {
    const other = this.#other()
    await other.cache.loadPrompts(await this.#model.cache.saveBytes())
    if (this.#world.dice.once(4)) other.cache.forgetPrefixes()
    note('exchanged')
  }

  /** The sequence is disposed of while it is computed. */
  async #abandon(): Promise<void> {
    const { t, dice, name, says } = this.#world
    const more = this.#prompt(20)
    const before = [...this.#tokens, ...more]
    const [wanted, got] = [says(before, 8), [] as number[]]
    const draft = dice.once(2) ? { draft: { lookup: 3 } } : {}
    const generation = this.#model.generate(this.#chat, { tokens: more, maxTokens: 8, ...draft })
    const reading = (async () => {
      for await (const token of generation) got.push(token)
    })()
    const chat = this.#chat
    await Promise.all([
      reading.catch((error: unknown) => this.#refused(error, 'DISPOSED')),
      turns(dice, 80).then(() => chat.dispose()),
    ])
    t.deepEqual(got, wanted.slice(0, got.length), `${name}, ${this.#name} says something else`)
    this.#tokens = [...before, ...got]
    this.#chat = this.#open()
    note('abandoned')
  }

  async #reopen(): Promise<void> {
    const { dice, hasTiers } = this.#world
    this.#chat.dispose()
    this.#model = this.#other()
    if (hasTiers && dice.once(2)) {
      using found = await this.#model.cache.match(this.#tokens, { ...this.#salt, tiers: 'all' })
      if (found.length > 0) note('restored from tiers')
    }
    if (dice.once(3)) this.#tokens.push(...this.#prompt(12))
    this.#chat = this.#open()
  }

  #retain(): void {
    const { dice } = this.#world
    const to = dice.roll(this.#chat.length + 1)
    this.#chat.retain({ from: dice.roll(to + 1), to, priority: dice.roll(101) })
  }

  /** A step that fails keeps nothing. */
  async #poison(): Promise<void> {
    const { t, name, vocabulary, isPoison } = this.#world
    const computed = this.#chat.length
    try {
      await this.#model.run([{ sequence: this.#chat, tokens: [...this.#prompt(12), vocabulary - 1] }])
      t.fail(`${name}, ${this.#name}: a step survives the poison`)
    } catch (error) {
      if (isPoison(error)) note('poison')
      else this.#refused(error)
    }
    t.true(this.#chat.length <= Math.max(computed, this.#tokens.length), `${name}, ${this.#name}`)
  }

  #other(): OnnxModel {
    const { dice, models } = this.#world
    return models[dice.roll(models.length)] as OnnxModel
  }

  #refused(error: unknown, ...more: readonly string[]): void {
    if (!isKvTideError(error) || !(ALLOWED.has(error.code) || more.includes(error.code))) throw error
    note(error.code)
  }

  #look(when: string): void {
    const { t, dice, name, models, statesAfter } = this.#world
    const [chat, tokens] = [this.#chat, this.#tokens]
    t.deepEqual([...chat.tokens], tokens, `${name}, ${this.#name} has other tokens ${when}`)
    t.true(chat.length <= tokens.length, `${name}, ${this.#name}: ${chat.length} computed tokens ${when}`)
    if (statesAfter !== undefined)
      t.deepEqual(
        chat.states(),
        statesAfter(tokens.slice(0, chat.length)),
        `${name}, ${this.#name} has other states ${when}`,
      )
    if (dice.once(4)) for (const { cache } of models) cache.checkInvariants()
  }
}
