// A client of a random schedule: it generates, runs, cancels, forks, cuts, drafts and rests, and checks that it gets what it would get alone.
import { setImmediate as eventLoop } from 'node:timers/promises'

import type { ExecutionContext } from 'ava'

import { isKvTideError, type KvTideError } from '../../../index.js'
import type { Encoding, Generation, OnnxModel, OnnxSequence } from '../../../onnx.js'
import { argmax } from './graphs.js'
import type { Pins } from './pins.js'
import { note } from './schedules.js'
import { type Alone, type Dice, embedsOf, type Picture, picturesOf } from './toy-model.js'

/** A model, and what it says to each alone. */
export interface ClientWorld {
  readonly model: OnnxModel
  readonly vocabulary: number
  /** A token that no step with it survives. */
  readonly poison: number | undefined
  readonly pins: Pins
  /** A client drafts once in so many turns. */
  readonly drafts: number
  /** A generation is poisoned once in so many, if the model has a poison: by default 25. */
  readonly poisons?: number
  /** The length beyond which a sequence is a long one, if the model tells them apart. */
  readonly threshold?: number | undefined
  /** The tokens behind others, up to one of which two are nearly as probable. With `total`, those of a part of a sequence of that length. */
  readonly alone: Alone
  /** True if it takes pictures. */
  readonly hasPictures?: boolean
  /** Those of a decoder with an encoder: each client has one of them. */
  readonly encodings?: readonly Encoding[]
  /** True if layers keep states: a transaction keeps some of its tokens only if the states between those of its last step were kept. */
  readonly isWhole?: boolean
  /** True if transactions may have steps of several tokens. The rules of {@link Pins} do not cover them: the cache must be large. */
  readonly runsDrafts?: boolean
}

/** Before it goes on, a client has room for so many tokens in the context of its model. */
const ROOM = 25

/** The codes of errors that a client may get instead of what it asked for. */
const ALLOWED = new Set(['OUT_OF_BLOCKS', 'ABORTED', 'CANNOT_ROLL_BACK'])

/** Prompts that begin alike, now and then. Some have more tokens than `most`, some about half as many. */
function promptOf(dice: Dice, vocabulary: number, most = 0): number[] {
  const length =
    1 + dice.roll(dice.once(60) ? Math.max(30, most) : dice.once(8) ? Math.max(30, most >> 1) : dice.once(4) ? 30 : 10)
  const family = dice.roll(3)
  const own = dice.roll(length + 1)
  return Array.from({ length }, (_, place) =>
    place < length - own ? (family * 5 + place * 3) % (vocabulary - 1) : dice.roll(vocabulary - 1),
  )
}

/** One who talks to the model, and knows what the tokens of its chat have to be. */
export class Client {
  readonly #t: ExecutionContext
  readonly #world: ClientWorld
  readonly #dice: Dice
  readonly #name: string
  readonly #salt: string
  readonly #pictures: readonly Picture[]
  readonly #encoded: Encoding | undefined
  readonly #context: number
  #chat: OnnxSequence
  #tokens: number[]

  constructor(
    t: ExecutionContext,
    world: ClientWorld,
    dice: Dice,
    name: string,
    from?: {
      chat?: OnnxSequence
      tokens: number[]
      salt: string
      pictures: readonly Picture[]
      encoded: Encoding | undefined
    },
  ) {
    this.#t = t
    this.#world = world
    this.#dice = dice
    this.#name = name
    this.#tokens = from?.tokens ?? promptOf(dice, world.vocabulary)
    this.#context = world.model.contextLength ?? Infinity
    this.#salt = from?.salt ?? (dice.once(3) ? 'other' : 'one')
    this.#pictures = from?.pictures ?? (world.hasPictures === true ? picturesOf(dice, this.#tokens) : [])
    const { encodings = [] } = world
    this.#encoded = from === undefined ? encodings[dice.roll(encodings.length)] : from.encoded
    const embeds = embedsOf(this.#pictures)
    this.#chat =
      from?.chat ??
      world.model.open({
        tokens: this.#tokens,
        salt: this.#salt,
        ...(embeds.length === 0 ? {} : { embeds }),
        ...(this.#encoded === undefined ? {} : { encoded: this.#encoded }),
      })
    if (this.#pictures.some(({ start, rows }) => start + rows <= this.#chat.length)) note('found picture')
    this.#rest()
  }

  /** Others cannot have its blocks from here on. */
  #rest(): void {
    this.#world.pins.set(this, this.#tokens.length)
  }

  /** Something is asked for that needs room for so many tokens: is it refused although it has that? */
  async #ask(tokens: number, isDraft: boolean, call: () => Promise<void>): Promise<void> {
    const { pins } = this.#world
    pins.set(this, isDraft ? tokens : 0, isDraft)
    let refusal: KvTideError | undefined
    const pinned = await pins.during(this, isDraft, () =>
      call().catch(async (error: unknown) => {
        if (!isKvTideError(error) || error.code !== 'OUT_OF_BLOCKS') throw error
        refusal = error
        pins.set(this, tokens)
        // Others whose calls have ended may not have been told yet that they rest.
        await eventLoop()
      }),
    )
    // Until its tokens are counted it has at most these.
    pins.set(this, tokens)
    if (refusal === undefined) return
    this.#t.true(
      pins.lacks(tokens, isDraft, pinned),
      `${this.#name}: ${refusal.message}, but ${tokens} tokens have room beside ${JSON.stringify(pinned)}; kept now: ${pins}; ${JSON.stringify(refusal.details)}`,
    )
    throw refusal
  }

  async talk(turns: number): Promise<void> {
    // What it begins with may be cached by then.
    if (this.#dice.once(3)) {
      for (let turn = this.#dice.roll(30); turn > 0; turn--) await eventLoop()
      await this.#run([])
    }
    for (let turn = 0; turn < turns; turn++) {
      await this.#turn()
      this.#look(`after turn ${turn}`)
    }
    this[Symbol.dispose]()
  }

  [Symbol.dispose](): void {
    this.#chat.dispose()
    this.#world.pins.set(this, 0)
  }

  async #turn(): Promise<void> {
    const dice = this.#dice
    await this.#wait()
    if (dice.once(6)) for (let turns = dice.roll(10); turns > 0; turns--) await eventLoop()
    if (dice.once(4)) this.#cut()
    if (this.#tokens.length > this.#context - ROOM) this.#cut(this.#context >> 1)
    if (dice.once(6)) return this.#run()
    if (dice.once(this.#world.drafts)) return this.#draft()
    if (dice.once(6)) return this.#twin()
    if (dice.once(5)) {
      const chat = this.#chat.fork()
      const other = new Client(this.#t, this.#world, dice, `${this.#name}'`, {
        chat,
        tokens: [...this.#tokens],
        salt: this.#salt,
        pictures: this.#pictures,
        encoded: this.#encoded,
      })
      await Promise.all([this.#generate(), other.talk(1)])
      return
    }
    return this.#generate()
  }

  /** As many tokens as the model has positions for. */
  #fitting(tokens: number[]): number[] {
    return tokens.slice(0, Math.max(0, this.#context - this.#tokens.length - 1))
  }

  /** The tokens that it gets behind others if it is alone. */
  async #alone(tokens: readonly number[], count: number, total?: number): Promise<number[]> {
    return this.#world.alone(tokens, count, total, this.#pictures, this.#encoded)
  }

  async #generate(needsTokens = false): Promise<void> {
    const [dice, { model, vocabulary, poison, poisons: odds = 25 }] = [this.#dice, this.#world]
    const more =
      needsTokens || this.#tokens.length === 0 || dice.once(3)
        ? this.#fitting(promptOf(dice, vocabulary, needsTokens ? 0 : this.#most))
        : []
    const isPoisoned = !needsTokens && poison !== undefined && dice.once(odds)
    const poisons = isPoisoned ? [poison] : []
    // Behind a window it would never fill the cache.
    const isEndless =
      model.cache.groups.every(({ kind }) => kind === 'full') && !needsTokens && !isPoisoned && dice.once(40)
    const maxTokens = isEndless ? this.#most : 1 + dice.roll(20)
    const breakAt = dice.once(3) ? dice.roll(6) : Infinity
    const abort = dice.once(6) ? new AbortController() : undefined
    const before = [...this.#tokens, ...more, ...poisons]
    const whole = isPoisoned ? [] : await this.#alone(before, maxTokens)
    const stop = dice.once(3) ? [whole[dice.roll(20)] ?? dice.roll(vocabulary)] : []
    const generation = model.generate(this.#chat, {
      tokens: [...more, ...poisons],
      stop,
      ...(isEndless ? {} : { maxTokens }),
      ...(dice.once(3) ? { draft: { lookup: 1 + dice.roll(5) } } : {}),
      ...(abort === undefined ? {} : { signal: abort.signal }),
    })
    const end = whole.findIndex(token => stop.includes(token))
    const wanted = end < 0 ? whole : whole.slice(0, end)
    // Behind a token that may be another one, anything may come.
    const isSure = !isEndless && (end >= 0 || whole.length === maxTokens)
    const got: number[] = []
    try {
      await this.#ask(before.length + (isEndless ? 1 : maxTokens), needsTokens, () =>
        this.#read(generation, got, breakAt, abort),
      )
      if (isEndless && got.length < breakAt) {
        // Its blocks may run out in the step that would draw the stop token.
        const reasons = end >= 0 && got.length === end ? ['stop', 'length'] : ['length']
        this.#t.true(
          reasons.includes(generation.finishReason ?? ''),
          `${this.#name} ended with ${generation.finishReason}`,
        )
        note('endless')
      } else if (got.length < breakAt) {
        this.#t.deepEqual(isSure ? got : got.slice(0, wanted.length), wanted, `${this.#name} got something else`)
        if (isSure) this.#t.is(generation.finishReason, end < 0 ? 'length' : 'stop')
        note(generation.finishReason ?? 'nothing')
      } else note('left')
      this.#t.false(isPoisoned && got.length > 0, 'a poisoned prompt says nothing')
    } catch (error) {
      this.#refused(error, isPoisoned)
    }
    if (!isPoisoned)
      this.#t.deepEqual(
        got.slice(0, wanted.length),
        wanted.slice(0, got.length),
        `${this.#name} got something else before it ended`,
      )
    this.#tokens = [...before, ...got]
    this.#rest()
    if (isPoisoned) {
      this.#look('poisoned')
      this.#chat.truncate(before.length - 1)
      this.#tokens = before.slice(0, -1)
    }
  }

  async #read(
    generation: Generation,
    got: number[],
    breakAt: number,
    abort: AbortController | undefined,
  ): Promise<void> {
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

  async #run(
    asked = promptOf(this.#dice, this.#world.vocabulary, this.#most),
    isAll = this.#dice.once(2),
    isDraft = false,
  ): Promise<void> {
    const { model, vocabulary } = this.#world
    const tokens = this.#fitting(asked)
    if (tokens.length + this.#tokens.length === this.#chat.length) return
    try {
      const computed = this.#chat.length
      let logits = new Float32Array()
      await this.#ask(this.#tokens.length + tokens.length, isDraft, async () => {
        ;[logits] = (await model.run([{ sequence: this.#chat, tokens }], { logits: isAll ? 'all' : 'last' })) as [
          typeof logits,
        ]
      })
      this.#tokens.push(...tokens)
      const rows = isAll ? this.#tokens.length - computed : 1
      this.#t.is(logits.length, rows * vocabulary)
      for (let row = 0; row < rows; row++) {
        const total = this.#tokens.length
        const [next] = await this.#alone(this.#tokens.slice(0, total - rows + row + 1), 1, total)
        if (next !== undefined)
          this.#t.is(
            argmax(logits.subarray(row * vocabulary, (row + 1) * vocabulary)),
            next,
            'logits of another sequence',
          )
      }
      note('run')
    } catch (error) {
      this.#refused(error, false)
    }
  }

  /** All logits of the same tokens in another sequence, which finds blocks of this one, while this one generates. */
  async #twin(): Promise<void> {
    const other = new Client(this.#t, this.#world, this.#dice, `${this.#name}, twin`, {
      tokens: [...this.#tokens],
      salt: this.#salt,
      pictures: this.#pictures,
      encoded: this.#encoded,
    })
    const follow = async (): Promise<void> => {
      for (let turn = this.#dice.roll(6); turn > 0; turn--) await eventLoop()
      await other.#run(this.#dice.once(2) ? [] : undefined, true)
      other.#look('as a twin')
      note('twin')
    }
    await Promise.all([this.#generate(), follow().finally(() => other[Symbol.dispose]())])
  }

  /** Something is tried in a transaction, and taken back or kept, all of it or a part. */
  async #draft(): Promise<void> {
    const [before, computed] = [[...this.#tokens], this.#chat.length]
    const draft = this.#chat.begin()
    if (this.#world.runsDrafts === true && this.#dice.once(2))
      await this.#run(promptOf(this.#dice, this.#world.vocabulary), false, true)
    else await this.#generate(true)
    const drafted = this.#chat.length - computed
    if (this.#dice.once(3)) {
      draft.rollback()
      this.#tokens = before
      note('rolled back')
    } else if (this.#dice.once(2)) {
      let kept = this.#dice.roll(drafted + 1)
      const isPart = kept > 0 && kept < drafted
      try {
        await this.#end(() => draft.commit(kept))
        if (isPart) note(this.#world.isWhole === true ? 'committed between two states' : 'committed in part')
      } catch (error) {
        const isRefused = isKvTideError(error) && error.code === 'CANNOT_ROLL_BACK'
        if (!isRefused || !isPart || this.#world.isWhole !== true) throw error
        kept = drafted * this.#dice.roll(2)
        await this.#end(() => draft.commit(kept))
        note('refused between two states')
      }
      if (kept < drafted) this.#shorten(computed + kept)
    } else await this.#end(() => draft.commit())
    this.#rest()
  }

  /** Ends a transaction: between two steps, if it has to quantise pages while one is computed. */
  async #end(commit: () => void): Promise<void> {
    try {
      commit()
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'BUSY') throw error
      await this.#world.model.between(commit)
      note('BUSY')
    }
  }

  #cut(length = this.#dice.roll(this.#tokens.length + 1)): void {
    try {
      this.#chat.truncate(length)
    } catch (error) {
      return this.#refused(error, false)
    }
    this.#shorten(length)
    this.#rest()
  }

  /** The chat was cut to a length: if a picture is cut as well, its rows follow again. */
  #shorten(length: number): void {
    const { start, rows } = this.#pictures.at(-1) ?? { start: 0, rows: 0 }
    const isCut = length < start + rows
    this.#tokens.length = Math.max(length, start + rows)
    if (!isCut) return
    this.#chat.resume(this.#tokens)
    note('cut picture')
  }

  /** More tokens than there is ever room for. */
  get #most(): number {
    const { capacity, blockSize } = this.#world.pins
    return ((capacity === Infinity ? 12 : capacity) + 8) * blockSize
  }

  #refused(error: unknown, isPoisoned: boolean): void {
    const { code } = error as KvTideError
    // In a transaction, tokens cannot be computed again with the numbers of a long sequence.
    const isCrossing = this.#world.threshold !== undefined && code === 'TRANSACTION_OPEN'
    const isAllowed =
      (isKvTideError(error) && (ALLOWED.has(code) || isCrossing)) ||
      (isPoisoned && ((error as Error).message === 'poison' || code === 'RUNTIME_FAILED'))
    if (!isAllowed) throw error
    note(isKvTideError(error) && code !== 'RUNTIME_FAILED' ? code : 'poison')
  }

  #look(when: string): void {
    this.#t.deepEqual([...this.#chat.tokens], this.#tokens, `${this.#name} has other tokens ${when}`)
  }

  async #wait(): Promise<void> {
    for (let turn = this.#dice.roll(this.#dice.once(4) ? 40 : 3); turn > 0; turn--) await Promise.resolve()
  }
}
