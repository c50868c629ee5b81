// The usage of a generation equals what the steps have computed for it, which a ledger counts by itself.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError } from '../../index.js'
import { Account } from '../../lib/onnx/usage.js'
import { type BackendName, type Generation, type GenerateOptions, OnnxModel, type Usage } from '../../onnx.js'
import { folderOf } from '../support/folder.js'
import { onnxTest } from '../support/onnx/available.js'
import { greedyOf, promptOf } from '../support/onnx/chat.js'
import { graphFile } from '../support/onnx/graphs.js'
import { linearGraph } from '../support/onnx/linear-graph.js'
import { Ledger, used } from '../support/onnx/ledger.js'
import { note, schedules } from '../support/onnx/schedules.js'
import { alone, Dice, POISON, ToyBackend, toyModel, VOCABULARY } from '../support/onnx/toy-model.js'
import { TOY_STATES } from '../support/onnx/toy-states.js'
import { rejected } from '../support/throws.js'

const CASES = Number(process.env['KVTIDE_SCHEDULES'] ?? 150)
const NO_TIMES = { firstTokenMs: undefined, tokensPerSecond: undefined }
/** Options of models that share tiers. */
const KEY = new Uint8Array(32).fill(7)
const NOTHING = { promptTokens: 0, cachedTokens: 0, computedTokens: 0, generatedTokens: 0 }

/** The counts of a usage, without times. */
const counts = (usage: Usage): object => ({ ...usage, firstTokenMs: undefined, tokensPerSecond: undefined })

/** So many ids; two families differ from their first token on. */
const ids = (count: number, family = 0): number[] =>
  Array.from({ length: count }, (_, place) => (family + place * 3) % 15)

test('an account is that of a set of positions', t => {
  for (let seed = 1; seed <= 2000; seed++) {
    const dice = new Dice(seed)
    const [prompt, held] = [dice.roll(40), dice.roll(50)]
    const account = new Account(prompt, held, 0)
    const computed = new Set<number>()
    let [reached, tokens, drafted] = [Math.min(held, prompt), 0, 0]
    for (let step = dice.roll(12); step > 0; step--) {
      const [from, count, drafts] = [dice.roll(45), 1 + dice.roll(9), dice.once(3) ? dice.roll(4) : 0]
      account.step(from, count, drafts)
      for (let at = from; at < Math.min(from + count, prompt); at++) computed.add(at)
      reached = Math.max(reached, Math.min(from + count, prompt))
      tokens += count + drafts
      drafted += drafts
    }
    t.deepEqual(
      counts(account.usage(prompt + 3)),
      {
        promptTokens: prompt,
        cachedTokens: reached - computed.size,
        computedTokens: tokens,
        generatedTokens: 3,
        draftedTokens: drafted,
        acceptedTokens: 0,
        ...NO_TIMES,
      },
      `seed ${seed}`,
    )
  }
})

test('times are those to the first token, and of the tokens behind it', t => {
  const account = new Account(5, 0, 1000)
  t.like(account.usage(5), { firstTokenMs: undefined, tokensPerSecond: undefined })
  account.draw(0, 0, 1100)
  t.like(account.usage(5), { firstTokenMs: undefined, tokensPerSecond: undefined }, 'a stop token is none')
  account.draw(1, 0, 1250)
  t.like(account.usage(6), { firstTokenMs: 250, tokensPerSecond: undefined })
  account.draw(4, 3, 1450)
  t.like(account.usage(10), { firstTokenMs: 250, tokensPerSecond: 20, acceptedTokens: 3 })
  account.draw(1, 0, 2250)
  t.like(account.usage(11), { firstTokenMs: 250, tokensPerSecond: 5 })
})

/** One who generates, runs and goes on, and compares what each generation used with the ledger. */
class Client {
  /** The tokens that steps have computed for it. */
  computed = 0
  readonly #t: ExecutionContext
  readonly #model: OnnxModel
  readonly #ledger: Ledger
  readonly #dice: Dice
  readonly #name: string
  readonly #drafts: readonly NonNullable<GenerateOptions['draft']>[]

  constructor(
    t: ExecutionContext,
    model: OnnxModel,
    ledger: Ledger,
    dice: Dice,
    name: string,
    drafts: readonly NonNullable<GenerateOptions['draft']>[],
  ) {
    this.#t = t
    this.#model = model
    this.#ledger = ledger
    this.#dice = dice
    this.#name = name
    this.#drafts = drafts
  }

  async talk(turns: number): Promise<void> {
    const dice = this.#dice
    const own = ids(1 + dice.roll(30), dice.roll(2)).map(id => (dice.once(12) ? (id + 1) % 15 : id))
    const sequence = this.#model.open({ tokens: own })
    for (let turn = 0; turn < turns; turn++) {
      if (dice.once(5)) tried(() => sequence.resume(ids(1 + dice.roll(40), dice.roll(2))))
      if (dice.once(5)) await this.#run(sequence)
      else await this.#generate(sequence)
      const { length } = sequence.tokens
      if (dice.once(4) && length > 4) tried(() => sequence.truncate(1 + dice.roll(length - 1)))
    }
    sequence.dispose()
  }

  async #run(sequence: ReturnType<OnnxModel['open']>): Promise<void> {
    const account = this.#ledger.of(sequence, 0)
    await this.#model.run([{ sequence, tokens: ids(1 + this.#dice.roll(9)) }]).catch(refused)
    this.computed += account.read().computed
  }

  async #generate(sequence: ReturnType<OnnxModel['open']>): Promise<void> {
    const dice = this.#dice
    const tokens = dice.once(2) || sequence.tokens.length === 0 ? ids(1 + dice.roll(12), dice.roll(3)) : []
    if (dice.once(30)) tokens.push(POISON)
    const prompt = sequence.tokens.length + tokens.length
    const account = this.#ledger.of(sequence, prompt)
    const draft = this.#drafts[dice.roll(2 * this.#drafts.length)]
    const maxTokens = 1 + dice.roll(24)
    const abort = new AbortController()
    const generation = this.#model.generate(sequence, {
      tokens,
      maxTokens,
      stop: dice.once(4) ? [dice.roll(VOCABULARY)] : [],
      signal: abort.signal,
      ...(draft === undefined ? {} : { draft }),
    })
    this.#t.like(generation.usage, NOTHING)
    const leaves = dice.once(4) ? dice.roll(maxTokens) : Infinity
    let got = 0
    try {
      for await (const _ of generation) {
        got += 1
        if (dice.once(40)) abort.abort()
        if (got >= leaves) break
        for (let turn = dice.roll(4); turn > 0; turn--) await Promise.resolve()
      }
    } catch (error) {
      refused(error)
    }
    this.#compare(generation, { got, prompt, ...account.read() })
  }

  #compare(
    generation: Generation,
    { got, prompt, computed, cached }: { got: number; prompt: number; computed: number; cached: number },
  ): void {
    const [t, name] = [this.#t, this.#name]
    const { usage, finishReason } = generation
    t.true(Object.isFrozen(usage))
    t.like(usage, { promptTokens: prompt, generatedTokens: got, computedTokens: computed }, name)
    t.true(usage.acceptedTokens <= usage.draftedTokens && usage.draftedTokens <= computed, name)
    // One that was refused may not have seen all of its prompt.
    const isWhole = usage.firstTokenMs !== undefined || finishReason === 'stop'
    if (isWhole) t.is(usage.cachedTokens, cached, name)
    else t.true(usage.cachedTokens <= cached, name)
    t.is(generation.usage.computedTokens, computed, `${name}: it is final`)
    if (isWhole && cached > 0) note('cached')
    if (computed > prompt - cached + got + usage.draftedTokens + 1) note('again')
    if (usage.acceptedTokens > 0) note('accepted')
    if (usage.acceptedTokens < usage.draftedTokens) note('rejected')
    note(finishReason ?? 'left')
    this.computed += computed
  }
}

const KNOWN: ReadonlySet<string> = new Set(['OUT_OF_BLOCKS', 'ABORTED', 'RUNTIME_FAILED', 'CANNOT_ROLL_BACK'])

/** Lets pass what a crowded model refuses. */
function refused(error: unknown): void {
  const isKnown = isKvTideError(error) ? KNOWN.has(error.code) : (error as Error).message === 'poison'
  if (!isKnown) throw error
  note('refused')
}

function tried(call: () => unknown): void {
  try {
    call()
  } catch (error) {
    refused(error)
  }
}

/** Clients of a model, all at once: what they used is what the steps have computed. */
async function crowd(
  t: ExecutionContext,
  model: OnnxModel,
  dice: Dice,
  name: string,
  drafts: readonly NonNullable<GenerateOptions['draft']>[],
): Promise<Ledger> {
  const ledger = new Ledger(model)
  const clients = Array.from(
    { length: 1 + dice.roll(6) },
    (_, place) => new Client(t, model, ledger, dice, `${name}, client ${place}`, drafts),
  )
  await Promise.all(clients.map(client => client.talk(1 + dice.roll(4))))
  t.is(
    clients.reduce((sum, { computed }) => sum + computed, 0),
    ledger.tokens,
    name,
  )
  return ledger
}

const ALL = ['cached', 'again', 'accepted', 'rejected', 'length', 'stop', 'left', 'refused']

for (const [what, form] of [
  ['full layers', {}],
  ['a window', { window: 9 }],
  ['states', { states: TOY_STATES[0] }],
] as const) {
  test(`random crowds over ${what} used what was computed`, async t => {
    await schedules(
      t,
      CASES,
      async (dice, name) => {
        const backend = new ToyBackend(dice, form)
        const second = toyModel(new ToyBackend(new Dice(7), { poison: -1, slip: 4 }), { capacity: 40 })
        const sizes = { capacity: 14 + dice.roll(40), stepTokens: 4 + dice.roll(20), sequences: 1 + dice.roll(6) }
        const model = toyModel(backend, { ...sizes, ...form })
        const ledger = await crowd(t, model, dice, name, ['lookup', { lookup: 3 }, { model: second, tokens: 3 }])
        // Steps that failed were undone.
        t.true(ledger.tokens <= backend.tokens, name)
        await model.dispose()
        await second.dispose()
      },
      ALL,
    )
  })
}

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  for (const [what, graph, capacity] of [
    ['a decoder', () => graphFile('llama/onnx'), 26],
    ['a hybrid', () => linearGraph(), 40],
  ] as const) {
    onnxTest(`${backend}: random crowds over ${what} used what was computed`, async t => {
      await using model = await OnnxModel.load(graph(), {
        backend,
        threads: 1,
        maxStepTokens: 12,
        cache: { capacity, blockSize: 4 },
      })
      const ledger = new Ledger(model)
      const dice = new Dice(5)
      for (let round = 0; round < 6; round++) {
        const before = ledger.tokens
        const inner = await crowd(t, model, dice, `round ${round}`, ['lookup'])
        t.is(ledger.tokens - before, inner.tokens)
      }
    })
  }
}

test('of chats that start together, the second finds what the first has computed', async t => {
  await using model = toyModel(new ToyBackend(new Dice(1)), { capacity: 200 })
  const prompt = ids(40)
  const chats = [1, 2, 3].map(last => model.open({ tokens: [...prompt, last] }))
  t.deepEqual(
    chats.map(({ length }) => length),
    [0, 0, 0],
  )
  const all = await Promise.all(chats.map(chat => used(model.generate(chat, { maxTokens: 3 }))))
  for (const [place, { tokens, usage }] of all.entries()) {
    t.deepEqual(tokens, alone([...prompt, place + 1], 3))
    t.deepEqual(counts(usage), {
      promptTokens: 41,
      cachedTokens: place === 0 ? 0 : 40,
      computedTokens: (place === 0 ? 41 : 1) + 2,
      generatedTokens: 3,
      draftedTokens: 0,
      acceptedTokens: 0,
      ...NO_TIMES,
    })
  }
  for (const chat of chats) chat.dispose()
})

test('tokens that a sequence has are cached ones; those of a resumed sequence too', async t => {
  await using model = toyModel(new ToyBackend(new Dice(2)), { capacity: 64 })
  using chat = model.open({ tokens: ids(10) })
  const first = await used(model.generate(chat, { maxTokens: 5 }))
  t.like(first.usage, { promptTokens: 10, cachedTokens: 0, computedTokens: 14, generatedTokens: 5 })
  // The last token of the answer is pending.
  const second = await used(model.generate(chat, { tokens: [1, 2], maxTokens: 3 }))
  t.like(second.usage, { promptTokens: 17, cachedTokens: 14, computedTokens: 5, generatedTokens: 3 })
  chat.resume([...ids(7), 14, 13])
  const third = await used(model.generate(chat, { maxTokens: 1 }))
  t.like(third.usage, { promptTokens: 9, cachedTokens: 7, computedTokens: 2, generatedTokens: 1 })
  // If nothing is pending, the last token is computed again.
  await model.run([{ sequence: chat }])
  const fourth = await used(model.generate(chat, { maxTokens: 1 }))
  t.like(fourth.usage, { promptTokens: 10, cachedTokens: 9, computedTokens: 1, generatedTokens: 1 })
})

test('what ends at once used nothing', async t => {
  await using model = toyModel(new ToyBackend(new Dice(3)), { capacity: 64, contextLength: 12 })
  using full = model.open({ tokens: ids(12) })
  const { tokens, usage } = await used(model.generate(full))
  t.deepEqual(
    [tokens, counts(usage)],
    [[], { ...NOTHING, promptTokens: 12, draftedTokens: 0, acceptedTokens: 0, ...NO_TIMES }],
  )
  // Its tokens are there but for the last one, whose logits are needed to go on.
  await model.run([{ sequence: full }])
  t.like((await used(model.generate(full))).usage, { promptTokens: 12, cachedTokens: 11, computedTokens: 0 })
  // An answer of a stop token alone has computed its prompt.
  using chat = model.open({ tokens: ids(9, 4) })
  const stopped = model.generate(chat, { stop: alone(ids(9, 4), 1) })
  t.like((await used(stopped)).usage, { promptTokens: 9, cachedTokens: 0, computedTokens: 9, generatedTokens: 0 })
  t.is(stopped.usage.firstTokenMs, undefined)
  // One that was refused, one that was never read, and one that was left before it began.
  using long = model.open({ tokens: ids(13) })
  const beyond = model.generate(long)
  await rejected(used(beyond), 'CONTEXT_OVERFLOW')
  const left = model.generate(chat, { tokens: [1] })
  await left.return()
  for (const generation of [beyond, left, model.generate(chat)])
    t.deepEqual(generation.usage, { ...NOTHING, draftedTokens: 0, acceptedTokens: 0, ...NO_TIMES } as Usage)
})

test('drafts are counted where they are verified', async t => {
  for (const slip of [Infinity, 2]) {
    const model = toyModel(new ToyBackend(new Dice(4), { poison: -1 }), { capacity: 400 })
    const draft = toyModel(new ToyBackend(new Dice(5), { poison: -1, slip }), { capacity: 400 })
    const prompt = [9, 2, 6]
    const wanted = alone(prompt, 41)
    let [drafted, accepted, steps, count] = [0, 0, 1, 1]
    for (; count < 41; steps++) {
      const own = alone([...prompt, ...wanted.slice(0, count)], Math.min(4, 41 - count - 1), slip)
      const wrong = own.findIndex((token, place) => token !== wanted[count + place])
      drafted += own.length
      accepted += wrong < 0 ? own.length : wrong
      count += 1 + (wrong < 0 ? own.length : wrong)
    }
    using chat = model.open({ tokens: prompt })
    const { tokens, usage } = await used(model.generate(chat, { maxTokens: 41, draft: { model: draft, tokens: 4 } }))
    t.deepEqual(tokens, wanted)
    t.deepEqual(counts(usage), {
      promptTokens: 3,
      cachedTokens: 0,
      computedTokens: 3 + (steps - 1) + drafted,
      generatedTokens: 41,
      draftedTokens: drafted,
      acceptedTokens: accepted,
      ...NO_TIMES,
    })
    await model.dispose()
    await draft.dispose()
  }
})

test('drafts behind a stop token are not accepted', async t => {
  const model = toyModel(new ToyBackend(new Dice(4), { poison: -1 }), { capacity: 400 })
  const draft = toyModel(new ToyBackend(new Dice(5), { poison: -1 }), { capacity: 400 })
  const prompt = [9, 2, 6]
  const wanted = alone(prompt, 6)
  const end = [1, 2, 3, 4].findLast(place => wanted.indexOf(wanted[place] as number) === place) as number
  using chat = model.open({ tokens: prompt })
  const options = { stop: [wanted[end] as number], draft: { model: draft, tokens: 4 } }
  const { tokens, usage } = await used(model.generate(chat, options))
  t.deepEqual(tokens, wanted.slice(0, end))
  t.like(usage, { generatedTokens: end, draftedTokens: 4, acceptedTokens: end - 1, computedTokens: 3 + 5 })
  await model.dispose()
  await draft.dispose()
})

test('a preempted chat counts what it computes again', async t => {
  const backend = new ToyBackend(new Dice(6))
  await using model = toyModel(backend, { capacity: 16 })
  const [first, second] = [model.open({ tokens: ids(20, 1) }), model.open({ tokens: ids(20, 2) })]
  const all = await Promise.all(
    [first, second].map(async chat => {
      const result = await used(model.generate(chat, { maxTokens: 24 }))
      chat.dispose()
      return result.usage
    }),
  )
  t.is(
    all.reduce((sum, { computedTokens }) => sum + computedTokens, 0),
    backend.tokens,
  )
  t.like(all[0], { promptTokens: 20, cachedTokens: 0, computedTokens: 43 })
  t.true((all[1]?.computedTokens ?? 0) > 43)
  t.is(all[1]?.cachedTokens, 0)
})

onnxTest('a prefix from a tier is a cached one', async t => {
  const folder = await folderOf(t)
  const load = (): Promise<OnnxModel> =>
    OnnxModel.load(graphFile('llama/onnx'), {
      threads: 1,
      cache: { capacity: 64, blockSize: 4, prefixKey: KEY, tiers: { disk: { path: folder }, deadline: 60_000 } },
    })
  const prompt = promptOf('p33')
  for (const cached of [0, 32]) {
    await using model = await load()
    using chat = model.open({ tokens: prompt })
    t.is(chat.length, 0, 'the sequence itself starts with nothing')
    const generation = model.generate(chat, { maxTokens: 4 })
    const { tokens, usage } = await used(generation)
    t.deepEqual(tokens, greedyOf('p33').slice(0, 4))
    t.like(usage, { promptTokens: 33, cachedTokens: cached, computedTokens: 33 - cached + 3, generatedTokens: 4 })
    t.true((usage.firstTokenMs ?? -1) >= 0 && (usage.tokensPerSecond ?? 0) > 0)
    await model.cache.flush(60_000)
  }
})

onnxTest('nothing is restored from tiers for a prompt that never fits', async t => {
  const folder = await folderOf(t)
  const load = (capacity: number): Promise<OnnxModel> =>
    OnnxModel.load(graphFile('llama/onnx'), {
      threads: 1,
      cache: { capacity, blockSize: 4, prefixKey: KEY, tiers: { disk: { path: folder }, deadline: 60_000 } },
    })
  {
    await using model = await load(64)
    using chat = model.open({ tokens: promptOf('p100') })
    await model.run([{ sequence: chat }])
    await model.cache.flush(60_000)
  }
  await using model = await load(16)
  using chat = model.open({ tokens: promptOf('p100') })
  const { details } = await rejected(used(model.generate(chat, { maxTokens: 1 })), 'OUT_OF_BLOCKS')
  t.like(details, { needed: 25, free: 16 })
  t.is(model.cache.stats().tiers?.disk?.found, 0)
  t.is(model.cache.stats().activeBlocks, 0)
})
