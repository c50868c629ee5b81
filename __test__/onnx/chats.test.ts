// A thousand chats one after the other leave nothing behind; one that fails costs the others nothing.
import test from 'ava'

import { collected, used } from '../support/garbage.js'
import { alone, Dice, POISON, ToyBackend, toyModel } from '../support/onnx/toy-model.js'

test('memory is flat over 1,000 chats', async t => {
  await using model = toyModel(new ToyBackend(new Dice(1)), { capacity: 64 })
  const chat = async (name: number): Promise<void> => {
    using sequence = model.open({ tokens: [name % 7, name % 11, 3, 4, 5], salt: `${name % 5}` })
    for await (const token of model.generate(sequence, {
      maxTokens: 20,
      temperature: 1,
      seed: name,
      bias: { [POISON]: -Infinity },
      draft: 'lookup',
    }))
      if (token === 3) break
    using fork = sequence.fork()
    await model.run([{ sequence: fork, tokens: [1, 2] }])
  }
  const chats = async (from: number, count: number): Promise<void> => {
    for (let name = from; name < from + count; name++) await chat(name)
  }
  await chats(0, 200)
  t.true(await collected(() => true))
  const [native, heap] = [used(), process.memoryUsage().heapUsed]
  await chats(200, 1000)
  t.true(
    await collected(() => used() <= native && process.memoryUsage().heapUsed < heap + 2 ** 20),
    `${native} bytes became ${used()}, ${heap} of heap ${process.memoryUsage().heapUsed}`,
  )
  t.is(model.cache.freeCount, model.cache.totalCount)
})

test('a step that fails refuses only the sequence that fails alone', async t => {
  const backend = new ToyBackend(new Dice(2))
  await using model = toyModel(backend, { capacity: 64 })
  const chats = Array.from({ length: 5 }, (_, place) => model.open({ tokens: [place, 1, 2] }))
  const answers = await Promise.allSettled(
    chats.map(async (sequence, place) => {
      const tokens: number[] = []
      for await (const token of model.generate(sequence, { tokens: place === 2 ? [POISON] : [7], maxTokens: 10 }))
        tokens.push(token)
      return tokens
    }),
  )
  for (const [place, answer] of answers.entries()) {
    if (place === 2) t.true(answer.status === 'rejected' && (answer.reason as Error).message === 'poison')
    else t.deepEqual(answer, { status: 'fulfilled', value: alone([place, 1, 2, 7], 10) })
  }
  for (const chat of chats) chat.dispose()
})

test('a prompt counts once in the hit rate; what others have computed meanwhile is found', async t => {
  await using model = toyModel(new ToyBackend(new Dice(3)), { capacity: 64 })
  const prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
  using first = model.open({ tokens: prompt })
  using second = model.open({ tokens: prompt })
  for await (const _ of model.generate(first, { maxTokens: 1 })) continue
  t.is(model.cache.stats().promptTokens, 18)
  t.is(model.cache.stats().hitTokens, 0)
  t.is(second.length, 0)
  const generation = model.generate(second, { maxTokens: 1 })
  await generation.next()
  t.is(second.length, 9)
  t.is(model.cache.stats().hitTokens, 8)
  await generation.return()
  // Of a prompt that was found in part, the rest is not asked for again, however long it is.
  const { promptTokens, hitTokens } = model.cache.stats()
  using third = model.open({ tokens: [...prompt, 14, 13, 12, 11, 10, 9] })
  for await (const _ of model.generate(third, { maxTokens: 2 })) continue
  t.deepEqual([model.cache.stats().promptTokens - promptTokens, model.cache.stats().hitTokens - hitTokens], [15, 8])
})
