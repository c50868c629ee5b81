// Functions that run between two steps of a model: calls inside them never wait for a step that waits for the function.
import { setImmediate as turn } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'

import type { GenerateOptions, Generation, OnnxModel, OnnxSequence } from '../../onnx.js'
import { rejected, throwsCode } from '../support/throws.js'
import { alone, Dice, ToyBackend, toyModel, VOCABULARY } from '../support/onnx/toy-model.js'

const PROMPT = [1, 2, 3]
const ALL = Array.from({ length: VOCABULARY }, (_, id) => id)

const small = (seed = 1): OnnxModel => toyModel(new ToyBackend(new Dice(seed), { poison: -1 }), { capacity: 64 })

async function all(generation: Generation): Promise<number[]> {
  const tokens: number[] = []
  for await (const token of generation) tokens.push(token)
  return tokens
}

/** A generation whose first token was read. It goes on until 16 tokens are unread. */
async function begun(model: OnnxModel, options: GenerateOptions = {}): Promise<[OnnxSequence, Generation, number]> {
  const sequence = model.open({ tokens: PROMPT })
  const generation = model.generate(sequence, { maxTokens: 40, ...options })
  const { value } = await generation.next()
  return [sequence, generation, value as number]
}

/** Nothing of the model is left open, and it computes the same as before. */
async function goesOn(t: ExecutionContext, model: OnnxModel): Promise<void> {
  const sequence = model.open({ tokens: PROMPT })
  t.deepEqual(await all(model.generate(sequence, { maxTokens: 3 })), alone(PROMPT, 3))
  sequence.dispose()
  t.is(model.cache.freeCount, model.cache.totalCount)
  await model.dispose()
}

test('a generation that ends inside ends at once, and its sequence can be used', async t => {
  const ends: ((generation: Generation) => Promise<unknown>)[] = [
    generation => generation.return(),
    generation => generation[Symbol.asyncDispose](),
    async generation => {
      for await (const token of generation) if (token >= 0) break
    },
  ]
  for (const [place, end] of ends.entries()) {
    const model = small()
    const [sequence, generation] = await begun(model)
    const other = await begun(model)
    const read = await model.between(async () => {
      await turn()
      await end(generation)
      const { length } = sequence.tokens
      sequence.truncate(2)
      return length
    })
    t.is(read, PROMPT.length + (place === 2 ? 2 : 1))
    t.deepEqual(await generation.next(), { done: true, value: undefined })
    t.deepEqual([other[2], ...(await all(other[1]))], alone(PROMPT, 40))
    sequence.dispose()
    other[0].dispose()
    await goesOn(t, model)
  }
})

test('a signal that is aborted inside ends a generation', async t => {
  const model = small()
  const abort = new AbortController()
  const [sequence, generation] = await begun(model, { signal: abort.signal })
  await model.between(async () => {
    abort.abort()
    await rejected(generation.next(), 'ABORTED')
    sequence.truncate(2)
  })
  sequence.dispose()
  await goesOn(t, model)
})

test('inside, tokens that are computed are read, and waiting for one that is not is refused', async t => {
  const model = small()
  const [sequence, generation, first] = await begun(model)
  const tokens = [first]
  await model.between(async () => {
    const reading = (async () => {
      for await (const token of generation) tokens.push(token)
    })()
    await rejected(reading, 'BUSY')
    await rejected(generation.next(), 'BUSY')
    await rejected(Promise.all([generation.next(), generation.next()]), 'BUSY')
  })
  // A refused call changes nothing.
  tokens.push(...(await all(generation)))
  t.deepEqual(tokens, alone(PROMPT, 40))
  sequence.dispose()
  await goesOn(t, model)
})

test('inside, another function of the same model is refused, also through another model', async t => {
  const [model, other] = [small(), small(2)]
  const sequence = model.open({ tokens: PROMPT })
  await model.between(async () => {
    await turn()
    throwsCode(t, 'BUSY', () => model.between(() => 1))
    t.is(await other.between(() => 2), 2)
    await rejected(
      other.between(() => model.run([{ sequence }])),
      'BUSY',
    )
    await rejected(
      other.between(() => model.between(() => 1)),
      'BUSY',
    )
  })
  // Functions that were called from elsewhere wait for each other.
  const called = await Promise.all([model.between(() => turn()), model.between(() => 3)])
  t.is(called[1], 3)
  await model.run([{ sequence }])
  sequence.dispose()
  await goesOn(t, other)
  await goesOn(t, model)
})

test('a model that is disposed of inside does not wait for the function', async t => {
  const model = small()
  const [, generation] = await begun(model)
  const sequence = model.open({ tokens: PROMPT })
  const running = rejected(model.run([{ sequence }]), 'DISPOSED')
  const [done] = await Promise.all([
    model.between(async () => {
      await model.dispose()
      throwsCode(t, 'DISPOSED', () => model.open())
      return 'done'
    }),
    running,
  ])
  t.is(done, 'done')
  await rejected(all(generation), 'DISPOSED')
  await model.dispose()
})

test('inside, a generation of another model goes on without the drafts of this one', async t => {
  const [model, draft] = [small(), small(2)]
  const options = { draft: { model: draft, tokens: 3 } }
  const [sequence, generation, first] = await begun(model, options)
  const tokens = [first]
  await draft.between(async () => {
    for (let count = 0; count < 20; count++) tokens.push((await generation.next()).value as number)
    // A generation that begins inside starts the other model.
    const [chat, begins] = await begun(model, options)
    await begins.return()
    chat.dispose()
  })
  const { draftedTokens } = generation.usage
  tokens.push(...(await all(generation)))
  t.deepEqual(tokens, alone(PROMPT, 40))
  t.true(generation.usage.draftedTokens > draftedTokens)
  sequence.dispose()
  await draft.between(() => undefined)
  await goesOn(t, draft)
  await goesOn(t, model)
})

test('a function does not lend its context to another model that it starts', async t => {
  const [model, other] = [small(), small(2)]
  const sequence = model.open({ tokens: PROMPT })
  const chat = other.open({ tokens: PROMPT })
  let computed: Promise<unknown> | undefined
  // Tokens are drawn by the other model, after the call of `next`.
  const allowed = (): number[] => {
    computed ??= model.run([{ sequence }])
    return ALL
  }
  const generation = other.generate(chat, { maxTokens: 2, allowed })
  await model.between(async () => void (await generation.next()))
  t.truthy(await computed)
  await generation.return()
  sequence.dispose()
  chat.dispose()
  await goesOn(t, other)
  await goesOn(t, model)
})
