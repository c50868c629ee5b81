// Runs of a model in the caller's transactions: a refused run leaves nothing, and no transaction ends during a run.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError, type Transaction } from '../../index.js'
import type { OnnxSequence } from '../../onnx.js'
import { argmax } from '../support/onnx/graphs.js'
import { drawn, drawnStates, note, schedules, turns, type World } from '../support/onnx/schedules.js'
import { alone, aloneOf, Dice, POISON, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import type { ToyStates } from '../support/onnx/toy-states.js'
import { refusal, rejected, throwsCode } from '../support/throws.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 800)

/** The caller's own record of a chat in transactions. */
class Caller {
  readonly #world: World
  readonly #chat: OnnxSequence
  #tokens: number[]
  readonly #open: { readonly draft: Transaction; readonly tokens: readonly number[]; readonly computed: number }[] = []

  constructor(world: World) {
    this.#world = world
    this.#tokens = drawn(world.dice)
    this.#chat = world.model.open({ tokens: this.#tokens, salt: 'one' })
  }

  async talk(): Promise<void> {
    const { dice } = this.#world
    for (let turn = 4 + dice.roll(10); turn > 0; turn--) {
      await this.#turn()
      this.#look()
    }
    this.#chat.dispose()
  }

  async #turn(): Promise<void> {
    const { dice } = this.#world
    if (dice.once(3)) return this.#begin()
    if (dice.once(4)) return this.#end()
    if (dice.once(5)) return this.#generate()
    return this.#run()
  }

  #look(): void {
    const { t, name } = this.#world
    t.deepEqual([...this.#chat.tokens], this.#tokens, `${name}: other tokens`)
    t.is(this.#chat.length, this.#world.model.cache.sequence(this.#chat.id).length, `${name}: not what the cache has`)
  }

  #begin(): void {
    const [last, tokens, computed] = [this.#open.at(-1), [...this.#tokens], this.#chat.length]
    this.#open.push({ draft: last === undefined ? this.#chat.begin() : last.draft.begin(), tokens, computed })
  }

  #end(): void {
    const last = this.#open.pop()
    if (last === undefined) return
    const { dice } = this.#world
    const how = dice.roll(3)
    if (how === 0) return last.draft.commit()
    if (how === 1) {
      // The first of those that were computed in it.
      const { length } = last.draft
      const kept = this.#world.states === undefined ? dice.roll(length + 1) : length * dice.roll(2)
      last.draft.commit(kept)
      if (kept < length) this.#tokens.length = last.computed + kept
      return
    }
    if (how === 2) last.draft.rollback()
    this.#tokens = [...last.tokens]
    note('rolled back')
  }

  async #generate(): Promise<void> {
    const { t, dice, name, model, says } = this.#world
    const [more, maxTokens] = [drawn(dice, 4), 1 + dice.roll(6)]
    const [abort, got] = [new AbortController(), [] as number[]]
    const before = [...this.#tokens, ...more]
    const when = dice.roll(6)
    try {
      for await (const token of model.generate(this.#chat, { tokens: more, maxTokens, signal: abort.signal })) {
        got.push(token)
        if (got.length === when) abort.abort()
      }
    } catch (error) {
      this.#refused(error)
    }
    t.deepEqual(got, says(before, maxTokens).slice(0, got.length), name)
    this.#tokens = [...before, ...got]
  }

  async #run(): Promise<void> {
    const { t, dice, name, model, says } = this.#world
    const [tokens, abort] = [drawn(dice, 30), new AbortController()]
    const isPoisoned = dice.once(3)
    const computed = this.#chat.length
    const other = model.open({ salt: 'other' })
    const entries = [
      { sequence: this.#chat, tokens: isPoisoned && dice.once(2) ? [...tokens, POISON] : tokens },
      ...(dice.once(2) ? [{ sequence: other, tokens: isPoisoned ? [...drawn(dice, 20), POISON] : drawn(dice) }] : []),
    ]
    const running = model.run(entries, { signal: abort.signal })
    const ending = dice.once(4) ? this.#endMeanwhile() : undefined
    if (dice.once(3)) void turns(dice, 60).then(() => abort.abort())
    try {
      const [logits] = (await running) as [Float32Array]
      await ending
      this.#tokens.push(...(entries[0] as { tokens: number[] }).tokens)
      t.is(argmax(logits), says(this.#tokens, 1)[0] as number, `${name}: logits of another sequence`)
      note('run')
    } catch (error) {
      this.#refused(error)
      await ending
      // In a transaction nothing that it has computed is left.
      if (this.#open.length > 0 && ending === undefined)
        t.is(this.#chat.length, computed, `${name}: something of a refused run is left`)
      note('refused')
    } finally {
      other.dispose()
    }
  }

  /** Ends transactions, or opens one, in the middle of a run: refused, or as if it had been done before. */
  async #endMeanwhile(): Promise<void> {
    const { dice } = this.#world
    await turns(dice, dice.once(2) ? 4 : 40)
    const place = this.#open.length - 1 - (dice.once(3) ? 1 : 0)
    const found = this.#open[place]
    // It may be over by now.
    if (found === undefined || refusal(this.#world.t, () => this.#chat.resume([1]))?.code !== 'BUSY') return
    const how = dice.roll(4)
    try {
      if (how === 0) found.draft.commit()
      else if (how === 1) found.draft.rollback()
      else if (how === 2) found.draft.begin().rollback()
      else found.draft.dispose()
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'TRANSACTION_OPEN') throw error
      return note('refused to end')
    }
    if (how === 2) return
    this.#open.length = place
    if (how === 0) return note('committed meanwhile')
    note('taken back meanwhile')
    this.#tokens = [...found.tokens]
  }

  #refused(error: unknown): void {
    const code = isKvTideError(error) ? error.code : (error as Error).message
    if (!['OUT_OF_BLOCKS', 'ABORTED', 'poison', 'TRANSACTION_CLOSED'].includes(code)) throw error
    note(code)
  }
}

async function inTransactions(
  t: ExecutionContext,
  dice: Dice,
  name: string,
  { window, states, slots }: { readonly window?: number; readonly states?: ToyStates; readonly slots?: number } = {},
): Promise<void> {
  const windowed = window === undefined ? {} : { window }
  const sizes = {
    capacity: 14 + dice.roll(60),
    stepTokens: 3 + dice.roll(12),
    blockSize: 1 + dice.roll(5),
    states,
    slots,
    ...windowed,
  }
  const model = toyModel(new ToyBackend(dice, { states, ...windowed }), sizes)
  const world: World = { t, dice, name, model, states, says: aloneOf({ window, states }) }
  await Promise.all(Array.from({ length: 1 + dice.roll(3) }, () => new Caller(world).talk()))
  t.is(model.cache.freeCount, model.cache.totalCount, `${name}: blocks are left`)
  model.cache.checkInvariants()
  await model.dispose()
}

const ENDS = [
  'run',
  'refused',
  'rolled back',
  'ABORTED',
  'poison',
  'OUT_OF_BLOCKS',
  'refused to end',
  'taken back meanwhile',
  'committed meanwhile',
]

test.serial('what is refused in transactions of the caller’s leaves nothing', async t => {
  await schedules(t, CASES, (dice, name) => inTransactions(t, dice, name), ENDS)
})

test.serial('the same over layers with a window, in transactions', async t => {
  const run = (dice: Dice, name: string): Promise<void> => inTransactions(t, dice, name, { window: 1 + dice.roll(12) })
  await schedules(t, Math.ceil(CASES / 2), run, ENDS)
})

test.serial('the same over layers with states, in transactions', async t => {
  const run = (dice: Dice, name: string, seed: number): Promise<void> =>
    inTransactions(t, dice, name, drawnStates(dice, seed))
  await schedules(t, Math.ceil(CASES / 4), run, ENDS)
})

test('a run that is refused in a transaction keeps none of its tokens', async t => {
  const model = toyModel(new ToyBackend(new Dice(1)), { capacity: 60, stepTokens: 10 })
  using chat = model.open({ tokens: [1, 2, 3] })
  using draft = chat.begin()
  const tokens = Array.from({ length: 27 }, (_, place) => place % 7)
  await t.throwsAsync(model.run([{ sequence: chat, tokens: [...tokens, POISON] }]), { message: 'poison' })
  t.deepEqual([[...chat.tokens], chat.length, draft.length], [[1, 2, 3], 0, 0])
  const [logits] = await model.run([{ sequence: chat, tokens }])
  t.is(argmax(logits as Float32Array), alone([1, 2, 3, ...tokens], 1)[0] as number)
  t.deepEqual([chat.length, draft.length], [30, 30])
  const inner = draft.begin()
  await t.throwsAsync(model.run([{ sequence: chat, tokens: [5, POISON] }]), { message: 'poison' })
  await model.run([{ sequence: chat, tokens: [5, 6] }])
  t.is(inner.length, 2)
  inner.rollback()
  t.is(chat.tokens.length, 30)
  draft.rollback()
  t.deepEqual([[...chat.tokens], chat.length], [[1, 2, 3], 0])
  await model.dispose()
})

test('a transaction does not end while a run computes in it', async t => {
  const model = toyModel(new ToyBackend(new Dice(1)), { capacity: 60, stepTokens: 4 })
  using chat = model.open({ tokens: [1, 2, 3] })
  const draft = chat.begin()
  const running = model.run([{ sequence: chat, tokens: Array.from({ length: 20 }, () => 5) }])
  while (draft.length === 0 && model.cache.sequence(chat.id).length === 0) await Promise.resolve()
  for (const call of [() => draft.commit(), () => draft.rollback(), () => draft.begin()])
    throwsCode(t, 'TRANSACTION_OPEN', call)
  throwsCode(t, 'BUSY', () => chat.begin())
  draft.dispose()
  await rejected(running, 'TRANSACTION_CLOSED')
  t.deepEqual([[...chat.tokens], chat.length], [[1, 2, 3], 0])
  await model.run([{ sequence: chat, tokens: [4] }])
  t.is(chat.length, 4)
  await model.dispose()
})
