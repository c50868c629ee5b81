// A second model that drafts: the same tokens at temperature 0, the same distribution else, and nothing of it left behind.
import { setImmediate as turn } from 'node:timers/promises'

import test from 'ava'

import type { NativeLogits } from '#binding'

import { attendAsync, isKvTideError, KvTideError } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import type { ModelStep } from '../../lib/onnx/backend.js'
import { type GenerateOptions, OnnxModel, type OnnxSequence } from '../../onnx.js'
import { references } from '../support/llama/references.js'
import { F16, graphFile, INT4 } from '../support/onnx/paged-graph.js'
import { FIRST_SEED } from '../support/onnx/schedules.js'
import { rejected } from '../support/throws.js'
import { alone, Dice, ToyBackend, toyModel, VOCABULARY } from '../support/onnx/toy-model.js'

const prompts = Object.keys(references.prompts)
const promptOf = (name: string): number[] => [...(references.prompts[name] as readonly number[])]
const greedyOf = (name: string): number[] => [...(references.greedy[name] as readonly number[])]
const load = (name: string): Promise<OnnxModel> =>
  OnnxModel.load(graphFile(name), { threads: 2, cache: { memoryBytes: 2 ** 23 } })

const EVEN = Array.from({ length: VOCABULARY / 2 }, (_, place) => 2 * place)

async function read(model: OnnxModel, sequence: OnnxSequence, options: GenerateOptions): Promise<number[]> {
  const tokens: number[] = []
  for await (const token of model.generate(sequence, options)) tokens.push(token)
  return tokens
}

/** Two toys: one that drafts what the other says but for one position in `slip`. */
function toys(seed: number, { slip = 3, capacity = 400, drafts = 400, sequences = 32 } = {}) {
  const backends = [
    new ToyBackend(new Dice(seed), { poison: -1 }),
    new ToyBackend(new Dice(seed + 1), { poison: -1, slip }),
  ] as const
  return {
    backends,
    model: toyModel(backends[0], { capacity, sequences }),
    draft: toyModel(backends[1], { capacity: drafts, sequences }),
  }
}

for (const name of ['onnx-gqa-f32', F16, INT4]) {
  test(`drafts of ${name}: every prompt gives the same 64 tokens, in fewer steps where it knows them`, async t => {
    await using model = await load('onnx-gqa-f32')
    await using draft = await load(name)
    const chats = prompts.map(prompt => model.open({ tokens: promptOf(prompt) }))
    const options = { maxTokens: 64, draft, ignoreEndOfSequence: true }
    const found = await Promise.all(chats.map(chat => read(model, chat, options)))
    t.deepEqual(found, prompts.map(greedyOf))
    chats.forEach(chat => chat.dispose())
    await model.between(() => undefined)
    await draft.between(() => undefined)
    t.is(draft.cache.freeCount, draft.cache.totalCount, 'no sequence of it is left')
  })
}

test('each step gives what of a draft is right, and one token more', async t => {
  for (const slip of [1, 2, 3, 5]) {
    const {
      backends: [own],
      model,
      draft,
    } = toys(slip, { slip })
    const prompt = [9, 2, 6]
    using chat = model.open({ tokens: prompt })
    const wanted = alone(prompt, 60)
    t.deepEqual(await read(model, chat, { maxTokens: 60, draft: { model: draft, tokens: 4 } }), wanted)
    let [steps, count] = [1, 1]
    for (; count < 60; steps++) {
      const drafted = alone([...prompt, ...wanted.slice(0, count)], Math.min(4, 60 - count - 1), slip)
      const wrong = drafted.findIndex((token, place) => token !== wanted[count + place])
      count += 1 + (wrong < 0 ? drafted.length : wrong)
    }
    t.is(own.steps, steps, `one wrong in ${slip}`)
    await model.dispose()
    await draft.dispose()
  }
})

test('under sampling and penalties a model that knows the same is never wrong', async t => {
  const {
    backends: [own],
    model,
    draft,
  } = toys(1, { slip: Infinity })
  using chat = model.open({ tokens: [1, 2, 3] })
  const sampling = {
    temperature: 0.7,
    seed: 4,
    repetitionPenalty: 1.5,
    presencePenalty: 0.5,
    frequencyPenalty: 0.3,
    topP: 0.95,
  }
  t.is((await read(model, chat, { maxTokens: 51, draft: { model: draft, tokens: 4 }, ...sampling })).length, 51)
  t.is(own.steps, 11)
  await model.dispose()
  await draft.dispose()
})

test('steps are saved, and the second model sees each token once', async t => {
  const {
    backends: [own, theirs],
    model,
    draft,
  } = toys(1, { slip: Infinity })
  using chat = model.open({ tokens: [1, 2, 3] })
  t.deepEqual(await read(model, chat, { maxTokens: 51, draft: { model: draft, tokens: 4 } }), alone([1, 2, 3], 51))
  // One token behind the prompt, then four drafted ones and one more a step.
  t.is(own.steps, 11)
  t.is(theirs.steps, 40)
  // The prompt, the token behind it and three drafts; then each time the fourth, the token behind it and three drafts.
  t.is(theirs.tokens, 7 + 9 * 5)
  await model.dispose()
  await draft.dispose()
})

test('generations that draft, others, and a second model that has no room', async t => {
  for (let seed = FIRST_SEED; seed < FIRST_SEED + 60; seed++) {
    const dice = new Dice(1000 + seed)
    const { model, draft } = toys(seed, {
      slip: 1 + dice.roll(5),
      capacity: 20 + dice.roll(60),
      drafts: 1 + dice.roll(40),
      sequences: 1 + dice.roll(6),
    })
    const clients = Array.from({ length: 1 + dice.roll(6) }, async (_, place) => {
      const prompt = Array.from({ length: 1 + dice.roll(12) }, () => dice.roll(VOCABULARY - 1))
      using chat = model.open({ tokens: prompt })
      const maxTokens = 1 + dice.roll(20)
      const draftOf: GenerateOptions['draft'] = [
        undefined,
        draft,
        { model: draft, tokens: 1 + dice.roll(6) },
        'lookup' as const,
      ][dice.roll(4)]
      const tokens: number[] = []
      const leaves = dice.once(4) ? dice.roll(maxTokens) + 1 : Infinity
      for await (const token of model.generate(chat, {
        maxTokens,
        ...(draftOf === undefined ? {} : { draft: draftOf }),
      })) {
        tokens.push(token)
        if (tokens.length === leaves) break
      }
      t.deepEqual(tokens, alone(prompt, Math.min(maxTokens, leaves)), `seed ${seed}, client ${place}`)
    })
    await Promise.all(clients)
    await draft.between(() => undefined)
    for (const { cache } of [model, draft]) t.is(cache.freeCount, cache.totalCount, `seed ${seed}: blocks are left`)
    await model.dispose()
    await draft.dispose()
  }
})

/** A text in which each pair of tokens of the toy occurs: prompt lookup then always finds something to draft. */
function everyPair(): number[] {
  const count = VOCABULARY - 1
  const tokens: number[] = []
  for (let first = 0; first < count; first++) {
    tokens.push(first)
    for (let second = first + 1; second < count; second++) tokens.push(first, second)
  }
  return [...tokens, 0]
}

for (const [name, prompt] of [
  ['nothing', [1, 2, 3]],
  ['tokens in each step', everyPair()],
] as const) {
  test(`a prompt gets its share of steps beside eight generations whose lookups draft ${name}`, async t => {
    const model = toyModel(new ToyBackend(new Dice(1)), { capacity: 4000, stepTokens: 64 })
    const begun = new Set<number>()
    let [most, drafted] = [0, 0]
    const chats = Array.from({ length: 8 }, async (_, place) => {
      using chat = model.open({ tokens: [...prompt, place] })
      const generation = model.generate(chat, { maxTokens: 60, draft: { lookup: 8 } })
      const tokens: number[] = []
      for await (const token of generation) {
        most = Math.max(most, tokens.push(token))
        begun.add(place)
      }
      t.deepEqual(tokens, alone([...prompt, place], 60))
      drafted += generation.usage.draftedTokens
    })
    while (begun.size < 8) await turn()
    using sequence = model.open({ tokens: Array.from({ length: 10 }, (_, place) => 14 - place) })
    await model.run([{ sequence }])
    // Near their end, generations draft less.
    t.true(most < 40, `one of them has ${most} tokens by then`)
    await Promise.all(chats)
    t.is(drafted > 8 * 60, prompt.length > 100, `${drafted} drafted tokens`)
    await model.dispose()
  })
}

const ALL = Array.from({ length: VOCABULARY }, (_, id) => id)

const NO_MEMORY = new KvTideError('OUT_OF_MEMORY', 'no memory is left', {
  requestedBytes: 4,
  usedBytes: 4,
  limitBytes: 4,
})
const noMemory = (): never => {
  throw NO_MEMORY
}

test('a draft that cannot be drawn leaves alone: drafts that shared its step go on', async t => {
  class Failing extends ToyBackend {
    fails = false

    override async run(step: ModelStep): Promise<NativeLogits> {
      const logits = await super.run(step)
      if (this.fails) Object.defineProperty(logits, 'fitted', { value: noMemory })
      return logits
    }
  }
  const backend = new Failing(new Dice(2), { poison: -1, slip: 3 })
  const model = toyModel(new ToyBackend(new Dice(1)), { capacity: 400 })
  const second = toyModel(backend, { capacity: 400 })
  using looking = second.open({ tokens: everyPair() })
  const looked = second.generate(looking, { maxTokens: 30, draft: 'lookup' })
  const tokens = [(await looked.next()).value]
  using chat = model.open({ tokens: [1, 2, 3] })
  backend.fails = true
  const drafted = rejected(read(model, chat, { maxTokens: 20, draft: second }), 'OUT_OF_MEMORY')
  for await (const token of looked) tokens.push(token)
  t.is(await drafted, NO_MEMORY)
  t.deepEqual(tokens, alone(everyPair(), 30, 3))
  t.true(looked.usage.draftedTokens > 0)
  looking.truncate(200)
  t.is((await read(model, chat, { maxTokens: 5 })).length, 5)
  await model.dispose()
  await second.dispose()
})

test('a draw that fails as a whole rolls the drafts of its step back', async t => {
  const model = toyModel(new ToyBackend(new Dice(1)), { capacity: 400 })
  const { prototype } = binding.NativeDraw
  const { run } = prototype
  let calls = 0
  const failing = (): number[] => {
    calls += 1
    // Restored at once: other tests draw as well.
    if (calls === 6)
      prototype.run = () => {
        prototype.run = run
        return noMemory()
      }
    return ALL
  }
  const chats = [failing, () => ALL].map((allowed, place) => {
    const prompt = [...everyPair(), place]
    const sequence = model.open({ tokens: prompt })
    return { sequence, prompt, generation: model.generate(sequence, { maxTokens: 30, draft: 'lookup', allowed }) }
  })
  await Promise.all(
    chats.map(async ({ sequence, prompt, generation }) => {
      const got: number[] = []
      const reading = (async () => {
        for await (const token of generation) got.push(token)
      })()
      t.is(await rejected(reading, 'OUT_OF_MEMORY'), NO_MEMORY)
      t.true(generation.usage.draftedTokens > 0)
      t.deepEqual([...prompt, ...got], [...sequence.tokens])
      t.deepEqual(await read(model, sequence, { maxTokens: 5 }), alone([...prompt, ...got], 5))
      sequence.dispose()
    }),
  )
  t.is(model.cache.freeCount, model.cache.totalCount)
  await model.dispose()
})

/** Begins attention in the background over a sequence's tokens: until it ends, changes of its cache are refused with `BUSY`. */
function attending({ cache }: OnnxModel, { id }: OnnxSequence): Promise<unknown> {
  return attendAsync({ data: new Float32Array(8), shape: [1, 1, 8] }, { cache, layer: 0, sequences: [id] })
}

test('a draft ends once the background has read the cache, and so does a second model begin', async t => {
  const { model, draft } = toys(4)
  const prompt = everyPair()
  const [own, theirs] = await Promise.all(
    [model, draft].map(async of => {
      const sequence = of.open({ tokens: [1, 2, 3] })
      await of.run([{ sequence }])
      return sequence
    }),
  )
  for (const options of [{ draft: 'lookup' as const }, { draft: { model: draft, tokens: 3 } }]) {
    const reads: Promise<unknown>[] = []
    using chat = model.open({ tokens: prompt })
    // It is called while tokens are drawn, right before the draft ends and the second model gets the tokens.
    const allowed = (): number[] => {
      reads.push(attending(model, own as OnnxSequence))
      if (reads.length % 3 === 1) reads.push(attending(draft, theirs as OnnxSequence))
      return ALL
    }
    const generation = model.generate(chat, { maxTokens: 30, allowed, ...options })
    const tokens: number[] = []
    for await (const token of generation) tokens.push(token)
    t.deepEqual(tokens, alone(prompt, 30))
    t.true(generation.usage.draftedTokens > 10)
    t.true((await Promise.all(reads)).length > 10)
    t.is((await read(model, chat, { maxTokens: 3 })).length, 3)
  }
  own?.dispose()
  theirs?.dispose()
  for (const { cache } of [model, draft]) t.is(cache.freeCount, cache.totalCount)
  await model.dispose()
  await draft.dispose()
})

test('under sampling the distribution stays the same', async t => {
  const { model, draft } = toys(7, { slip: 2 })
  const { temperature, draws } = { temperature: 0.4, draws: 3000 }
  // The most probable token, the one that a slip drafts, and all others.
  const top = Math.exp(1 / temperature) / (Math.exp(1 / temperature) + VOCABULARY - 1)
  const shares = [top, (1 - top) / (VOCABULARY - 1), 1 - top - (1 - top) / (VOCABULARY - 1)]
  const counts = [0, 0, 0]
  const prompt = [4, 8, 2]
  await Promise.all(
    Array.from({ length: 30 }, async (_, client) => {
      for (let draw = client; draw < draws; draw += 30) {
        using chat = model.open({ tokens: prompt })
        const tokens = await read(model, chat, {
          maxTokens: 4,
          temperature,
          seed: draw,
          draft: { model: draft, tokens: 3 },
        })
        for (let place = 1; place < tokens.length; place++) {
          const [best] = alone([...prompt, ...tokens.slice(0, place)], 1) as [number]
          const kind = tokens[place] === best ? 0 : tokens[place] === (best + 1) % (VOCABULARY - 1) ? 1 : 2
          counts[kind] = (counts[kind] as number) + 1
        }
      }
    }),
  )
  const all = 3 * draws
  const squares = shares.reduce(
    (sum, share, kind) => sum + ((counts[kind] as number) - all * share) ** 2 / (all * share),
    0,
  )
  // Two degrees of freedom: one run in ten thousand lies above, and the seeds are always the same.
  t.true(
    squares < 18.4,
    `${squares}: ${counts.join(', ')} instead of ${shares.map(share => Math.round(all * share)).join(', ')}`,
  )
  await model.dispose()
  await draft.dispose()
})

test('grammars hold for drafts, and log-probabilities are those of the model', async t => {
  const { model, draft } = toys(3, { slip: 2 })
  for (const temperature of [0, 0.5]) {
    const answers = await Promise.all(
      [{ draft }, {}].map(async options => {
        using chat = model.open({ tokens: [5, 6] })
        const generation = model.generate(chat, {
          maxTokens: 24,
          temperature,
          seed: 3,
          allowed: () => EVEN,
          logprobs: 1,
          ...options,
        })
        const tokens: number[] = []
        for await (const token of generation) {
          tokens.push(token)
          t.is(generation.logprobs?.token, token)
        }
        return tokens
      }),
    )
    for (const tokens of answers)
      t.true(tokens.length === 24 && tokens.every(token => token % 2 === 0), tokens.join(' '))
    if (temperature === 0) t.deepEqual(answers[0], answers[1])
  }
  await model.dispose()
  await draft.dispose()
})

for (const more of [5, -1]) {
  test(`a vocabulary of ${more} tokens more`, async t => {
    const { model } = toys(9)
    const draft = toyModel(new ToyBackend(new Dice(9), { poison: -1, slip: 3, vocabulary: VOCABULARY + more }), {
      capacity: 400,
      vocabulary: VOCABULARY + more,
    })
    for (const temperature of [0, 1]) {
      using chat = model.open({ tokens: [7, 7] })
      const tokens = await read(model, chat, { maxTokens: 40, temperature, seed: 1, draft })
      t.true(tokens.every(token => token < VOCABULARY))
      if (temperature === 0) t.deepEqual(tokens, alone([7, 7], 40))
    }
    await model.dispose()
    await draft.dispose()
  })
}

test('two models that draft for each other', async t => {
  const { model, draft } = toys(11, { slip: 4, capacity: 24, drafts: 24 })
  const prompt = [3, 1, 4, 1, 5]
  const one = Array.from({ length: 4 }, async (_, place) => {
    using chat = model.open({ tokens: [...prompt, place] })
    t.deepEqual(await read(model, chat, { maxTokens: 20, draft }), alone([...prompt, place], 20))
  })
  const other = Array.from({ length: 4 }, async (_, place) => {
    using chat = draft.open({ tokens: [...prompt, place] })
    t.is((await read(draft, chat, { maxTokens: 20, draft: model })).length, 20)
  })
  await Promise.all([...one, ...other])
  await model.dispose()
  await draft.dispose()
})

test('a second model that is gone or fails ends the generation with its error', async t => {
  const { model, draft } = toys(5)
  using chat = model.open({ tokens: [1, 2] })
  const generation = model.generate(chat, { draft })
  await generation.next()
  await draft.dispose()
  const error = await t.throwsAsync(async () => {
    for await (const _ of generation) continue
  })
  t.true(isKvTideError(error) && error.code === 'DISPOSED')
  t.throws(() => model.generate(chat, { draft }), { code: 'DISPOSED' })
  t.is((await read(model, chat, { maxTokens: 5 })).length, 5, 'the sequence goes on')

  const poisoned = toyModel(new ToyBackend(new Dice(1), { poison: alone([1, 2], 1)[0] as number }), { capacity: 40 })
  using other = model.open({ tokens: [1, 2] })
  await t.throwsAsync(() => read(model, other, { maxTokens: 5, draft: poisoned }), { message: 'poison' })
  t.is(poisoned.cache.freeCount, poisoned.cache.totalCount)
  await model.dispose()
  await poisoned.dispose()
})

test('what cannot draft is refused', async t => {
  const { model, draft } = toys(2)
  const large = toyModel(new ToyBackend(new Dice(1)), { capacity: 4, vocabulary: VOCABULARY + 1025 })
  using chat = model.open({ tokens: [1] })
  const refused = (value: unknown, message: RegExp): void => {
    t.throws(() => model.generate(chat, { draft: value as 'lookup' }), { code: 'INVALID_ARGUMENT', message })
  }
  refused(model, /draft is .*another model/)
  refused(null, /draft is null/)
  refused('model', /draft is "model"/)
  refused({}, /draft/)
  refused(large, /draft\.vocabularySize is 1041, expected about 16/)
  refused({ model: {} }, /draft\.model/)
  refused({ model: draft, lookup: 3 }, /draft/)
  refused({ lookup: 3, tokens: 3 }, /draft\.tokens is 3/)
  refused({ model: draft, tokens: 0 }, /draft\.tokens is 0/)
  refused({ model: draft, tokens: 65 }, /draft\.tokens is 65/)
  await large.dispose()
  await model.dispose()
  await draft.dispose()
})
