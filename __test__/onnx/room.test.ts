// A cache that is too small for everything that is asked of it: one request never ends or starves another, what can never fit is refused before it is
// computed, and the event loop goes on.
import { setImmediate as turn } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'

import { isKvTideError, type KvTideError, PagedKvCache } from '../../index.js'
import { nativeArgument } from '../../lib/border/owner.js'
import type { SharedCache } from '../../lib/sequences/shared-cache.js'
import type { GenerateOptions, Generation, OnnxModel, OnnxSequence } from '../../onnx.js'
import { rejected } from '../support/throws.js'
import { alone, Dice, ToyBackend, toyModel } from '../support/onnx/toy-model.js'

/** So many ids; two families differ from their first block on. */
function ids(count: number, family = 0): number[] {
  return Array.from({ length: count }, (_, place) => (family + place * 3) % 15)
}

/** A model over so many blocks of four tokens, and its backend. */
function small(
  capacity: number,
  sizes: { stepTokens?: number; sequences?: number } = {},
): { model: OnnxModel; backend: ToyBackend } {
  const backend = new ToyBackend(new Dice(capacity))
  return { model: toyModel(backend, { capacity, ...sizes }), backend }
}

async function all(generation: Generation): Promise<number[]> {
  const tokens: number[] = []
  for await (const token of generation) tokens.push(token)
  return tokens
}

/** Generates in a sequence that is dropped at the end, as a server does. */
async function chat(model: OnnxModel, tokens: readonly number[], options: GenerateOptions = {}): Promise<number[]> {
  using sequence = model.open({ tokens })
  return await all(model.generate(sequence, options))
}

/** The code of the error that a promise is rejected with, or its value. */
const outcome = <T>(promise: Promise<T>): Promise<T | string> =>
  promise.catch((error: unknown) => (isKvTideError(error) ? error.code : Promise.reject(error)))

/** Computes a prompt, so that it is cached. */
async function cached(model: OnnxModel, tokens: readonly number[]): Promise<void> {
  using sequence = model.open()
  await model.run([{ sequence, tokens: [...tokens] }])
}

/** The number of tokens of a prompt that are cached. */
const found = (model: OnnxModel, tokens: readonly number[]): number => model.cache.explain([...tokens, 14]).matched

async function isWhole(t: ExecutionContext, model: OnnxModel): Promise<void> {
  await turn()
  t.is(model.cache.freeCount, model.cache.totalCount)
  model.cache.checkInvariants()
  await model.dispose()
}

test('all logits of a cached prompt that has no room wait for a generation, while timers go on', async t => {
  const { model } = small(8)
  const prompt = ids(17)
  const [pending, busy] = [model.open({ tokens: prompt }), model.open({ tokens: ids(12, 7) })]
  await cached(model, prompt.slice(0, 16))
  t.is(found(model, prompt.slice(0, 16)), 16)
  t.is(pending.length, 0)
  let ticks = 0
  const timer = setInterval(() => (ticks += 1), 1)
  const answer = all(model.generate(busy, { maxTokens: 4 })).finally(() => busy.dispose())
  const computed = model.run([{ sequence: pending, tokens: [] }], { logits: 'all' })
  // The timer decides: without turns of the event loop nothing after this line would run.
  await new Promise(resolve => setTimeout(resolve, 5))
  t.deepEqual(await answer, alone(ids(12, 7), 4))
  const [logits] = (await computed) as [Float32Array]
  t.is(logits.length, 17 * 16)
  t.true(ticks > 0)
  clearInterval(timer)
  pending.dispose()
  await isWhole(t, model)
})

test('beside a prompt that does not fit, one that has room is computed', async t => {
  const { model, backend } = small(16)
  await cached(model, ids(24))
  const before = backend.tokens
  const answers = await Promise.all([
    outcome(chat(model, ids(100, 5), { maxTokens: 4 })),
    outcome(chat(model, ids(4, 9), { maxTokens: 3 })),
  ])
  t.deepEqual(answers, ['OUT_OF_BLOCKS', alone(ids(4, 9), 3)])
  t.is(backend.tokens - before, 4 + 2, 'nothing of the long prompt is computed')
  t.is(found(model, ids(24)), 24, 'nothing is evicted for it')
  await isWhole(t, model)
})

test('what can never fit is refused before it is computed, at once, and says how much that is', async t => {
  const { model, backend } = small(16)
  using sequence = model.open()
  const { details } = await rejected(model.run([{ sequence, tokens: ids(65) }]), 'OUT_OF_BLOCKS')
  t.like(details, { needed: 17, free: 16 })
  t.is(backend.tokens, 0)
  t.deepEqual([...sequence.tokens], [])
  // Behind one that is running as well.
  const first = chat(model, ids(8), { maxTokens: 30 })
  const second = outcome(chat(model, ids(200), { maxTokens: 1 }))
  t.is(await second, 'OUT_OF_BLOCKS')
  t.deepEqual(await first, alone(ids(8), 30))
  // All that fits exactly is computed.
  await model.run([{ sequence, tokens: ids(64) }])
  t.is(sequence.length, 64)
  sequence.dispose()
  await isWhole(t, model)
})

test('a chat without maxTokens fills the pool and ends; twelve others end as well', async t => {
  const { model } = small(40)
  using endless = model.open({ tokens: ids(8, 1) })
  const generation = model.generate(endless)
  const [long, ...others] = await Promise.all([
    all(generation),
    ...Array.from({ length: 12 }, (_, place) => chat(model, ids(6, place), { maxTokens: 60 })),
  ])
  t.is(generation.finishReason, 'length')
  t.deepEqual(long, alone(ids(8, 1), long.length))
  t.true(long.length >= 40 * 4 - 8 - 4, `${long.length} tokens`)
  for (const [place, other] of others.entries()) t.deepEqual(other, alone(ids(6, place), 60), `chat ${place}`)
  // Its tokens are there, and wait to be computed again.
  t.is(endless.tokens.length, 8 + long.length)
  t.is(endless.length, 0)
  endless.dispose()
  await isWhole(t, model)
})

test('with maxTokens, a chat that fills the pool is refused, and what it had is free for the next', async t => {
  const { model } = small(16)
  const first = model.open({ tokens: ids(8, 1) })
  const second = model.open({ tokens: ids(40, 2) })
  const answers = await Promise.all([
    outcome(all(model.generate(first, { maxTokens: 100 }))),
    outcome(all(model.generate(second, { maxTokens: 10 }))),
  ])
  t.deepEqual(answers, ['OUT_OF_BLOCKS', alone(ids(40, 2), 10)])
  first.dispose()
  second.dispose()
  await isWhole(t, model)
})

test('a chat whose owner keeps its sequence for a moment costs the next one nothing', async t => {
  const { model } = small(12)
  const one = async (family: number): Promise<number[]> => {
    const sequence = model.open({ tokens: ids(20, family) })
    const tokens = await all(model.generate(sequence, { maxTokens: 20 }))
    await Promise.resolve()
    sequence.dispose()
    return tokens
  }
  const answers = await Promise.all([1, 2, 3, 4].map(one))
  for (const [place, tokens] of answers.entries()) t.deepEqual(tokens, alone(ids(20, place + 1), 20))
  await isWhole(t, model)
})

test('chats that wait with blocks of their own give them to the oldest, and all go on', async t => {
  const { model } = small(12, { sequences: 1 })
  const chats = [1, 2, 3].map(family => model.open({ tokens: ids(12, family) }))
  for (const sequence of chats) await model.run([{ sequence, tokens: [] }])
  t.is(model.cache.freeCount, 3)
  const answers = await Promise.all(
    chats.map((sequence, place) =>
      all(model.generate(sequence, { tokens: [place], maxTokens: 24 })).finally(() => sequence.dispose()),
    ),
  )
  for (const [place, tokens] of answers.entries()) t.deepEqual(tokens, alone([...ids(12, place + 1), place], 24))
  await isWhole(t, model)
})

test('an answer that is done and not read yet gives its blocks to others', async t => {
  const { model } = small(8)
  using sequence = model.open({ tokens: ids(24, 1) })
  const slow = model.generate(sequence, { maxTokens: 6 })
  const got = [(await slow.next()).value]
  t.deepEqual(await chat(model, ids(28, 2), { maxTokens: 4 }), alone(ids(28, 2), 4))
  for await (const token of slow) got.push(token)
  t.deepEqual(got, alone(ids(24, 1), 6))
  t.deepEqual(await all(model.generate(sequence, { maxTokens: 2 })), alone([...ids(24, 1), ...alone(ids(24, 1), 6)], 2))
  sequence.dispose()
  await isWhole(t, model)
})

test('what resting sequences hold is counted: nothing is computed in vain, and their owners keep it', async t => {
  const { model, backend } = small(12)
  const resting = model.open()
  await model.run([{ sequence: resting, tokens: ids(32, 1) }])
  const before = backend.tokens
  using sequence = model.open({ tokens: ids(20, 2) })
  const { details } = await rejected(model.run([{ sequence, tokens: [] }]), 'OUT_OF_BLOCKS')
  t.like(details, { needed: 5, free: 4 })
  t.is(backend.tokens, before)
  t.is(resting.length, 32)
  t.deepEqual([...sequence.tokens], ids(20, 2))
  // Beside one that runs, it waits: that one may end and go.
  const running = chat(model, [1, 2, 3], { maxTokens: 3 })
  const waiting = model.run([{ sequence, tokens: [] }])
  await running
  resting.dispose()
  t.is((await waiting).length, 1)
  sequence.dispose()
  await isWhole(t, model)
})

test('the older one waits for a younger one in a transaction, and neither is refused', async t => {
  const { model } = small(12)
  const [older, younger] = [model.open({ tokens: ids(8, 1) }), model.open({ tokens: ids(8, 2) })]
  const draft = younger.begin()
  const first = all(model.generate(older, { maxTokens: 30 }))
  const second = all(model.generate(younger, { tokens: [3], maxTokens: 16 })).then(tokens => {
    draft.rollback()
    younger.dispose()
    return tokens
  })
  t.deepEqual(await second, alone([...ids(8, 2), 3], 16))
  t.deepEqual(await first, alone(ids(8, 1), 30))
  older.dispose()
  await isWhole(t, model)
})

test('of several in transactions that all have no room, the youngest is refused', async t => {
  const { model } = small(8)
  const chats = [1, 2].map(family => model.open({ tokens: ids(8, family) }))
  const drafts = chats.map(sequence => sequence.begin())
  const answers = await Promise.all(
    chats.map(async (sequence: OnnxSequence, place) => {
      try {
        return await outcome(all(model.generate(sequence, { tokens: [3], maxTokens: 12 })))
      } finally {
        drafts[place]?.rollback()
        if (place === 1) sequence.dispose()
      }
    }),
  )
  t.deepEqual(answers, [alone([...ids(8, 1), 3], 12), 'OUT_OF_BLOCKS'])
  chats[0]?.dispose()
  await isWhole(t, model)
})

/** True if a promise is settled after some turns of the event loop. */
async function settles(promise: Promise<unknown>): Promise<boolean> {
  let isSettled = false
  const settle = (): void => void (isSettled = true)
  promise.then(settle, settle)
  for (let rest = 0; rest < 20; rest++) await turn()
  return isSettled
}

/** A chat in a transaction, whose next token is computed and not read: a model that computes nothing else sleeps. */
async function unread(model: OnnxModel, maxTokens: number): Promise<[OnnxSequence, Generation]> {
  const sequence = model.open({ tokens: ids(10, 1) })
  sequence.begin()
  const generation = model.generate(sequence, { tokens: [3], maxTokens })
  await generation.next()
  return [sequence, generation]
}

test('a prompt that waits beside an idle transaction begins once other sequences have freed its blocks', async t => {
  const ways: ((resting: OnnxSequence) => void)[] = [resting => resting.dispose(), resting => resting.truncate(4)]
  for (const free of ways) {
    const { model } = small(16)
    const resting = model.open({ tokens: ids(36, 2) })
    await model.run([{ sequence: resting }])
    const [idle, generation] = await unread(model, 9)
    const waiting = model.open({ tokens: ids(25, 3) })
    const computed = model.run([{ sequence: waiting }])
    t.false(await settles(computed))
    free(resting)
    t.is((await computed).length, 1)
    // The transaction ends with its chat.
    for (const sequence of [idle, resting, waiting]) sequence.dispose()
    await rejected(all(generation), 'DISPOSED')
    await isWhole(t, model)
  }
})

test('a model sleeps while its prompts wait for room, also beside a reader of its events', async t => {
  const backend = new ToyBackend(new Dice(1))
  const model = toyModel(backend, { capacity: 8, more: { events: 100 } })
  const { native } = nativeArgument<SharedCache>('cache', model.cache, PagedKvCache)
  const check = native.checkGrowth.bind(native)
  let looks = 0
  native.checkGrowth = (...numbers) => {
    looks += 1
    return check(...numbers)
  }
  const drafting = model.open({ tokens: ids(4, 5) })
  await model.run([{ sequence: drafting }])
  const draft = drafting.begin()
  const [idle] = await unread(model, 2)
  const events = model.cache.events()
  const reading = (async () => {
    for await (const event of events) t.truthy(event)
  })()
  const waiting = model.open({ tokens: ids(25, 3) })
  const computed = outcome(model.run([{ sequence: waiting }]))
  const drafted = outcome(model.run([{ sequence: drafting, tokens: ids(25, 4) }]))
  t.false(await settles(Promise.race([computed, drafted])))
  const before = looks
  t.false(await settles(Promise.race([computed, drafted])))
  t.is(looks, before)
  idle.dispose()
  t.is(typeof (await drafted), 'object')
  draft.rollback()
  t.is(typeof (await computed), 'object')
  waiting.dispose()
  drafting.dispose()
  await isWhole(t, model)
  await reading
})

test('a prompt that waits for an answer to be read goes on, or is refused, once that answer is disposed of', async t => {
  for (const others of [0, 4]) {
    const { model } = small(8)
    const resting = model.open()
    if (others > 0) await model.run([{ sequence: resting, tokens: ids(4 * others, 2) }])
    const [idle] = await unread(model, 2)
    const waiting = model.open({ tokens: ids(25, 3) })
    const computed = outcome(model.run([{ sequence: waiting }]).then(() => 'computed'))
    t.false(await settles(computed))
    idle.dispose()
    t.is(await computed, others === 0 ? 'computed' : 'OUT_OF_BLOCKS')
    resting.dispose()
    waiting.dispose()
    await isWhole(t, model)
  }
})

test('a prompt that waits for room ends with its sequence', async t => {
  const { model } = small(8)
  const [idle, generation] = await unread(model, 9)
  const waiting = model.open({ tokens: ids(25, 3) })
  const computed = model.run([{ sequence: waiting }])
  t.false(await settles(computed))
  waiting.dispose()
  await rejected(computed, 'DISPOSED')
  idle.dispose()
  await rejected(all(generation), 'DISPOSED')
  await isWhole(t, model)
})

test('the drafts of a second model give their blocks to what that model generates itself', async t => {
  const { model } = small(64)
  const { model: second } = small(8)
  using sequence = model.open({ tokens: ids(20, 1) })
  const generation = model.generate(sequence, { maxTokens: 8, draft: { model: second, tokens: 2 } })
  const got = [(await generation.next()).value]
  t.true(second.cache.freeCount < second.cache.totalCount)
  t.deepEqual(await chat(second, ids(28, 2), { maxTokens: 4 }), alone(ids(28, 2), 4))
  for await (const token of generation) got.push(token)
  t.deepEqual(got, alone(ids(20, 1), 8))
  sequence.dispose()
  await turn()
  t.is(second.cache.freeCount, second.cache.totalCount)
  await second.dispose()
  await isWhole(t, model)
})

test('a second model gives the blocks of drafts to its own chats also while it drafts nothing', async t => {
  const { model } = small(64)
  const { model: second } = small(12)
  using sequence = model.open({ tokens: ids(20, 1) })
  const generation = model.generate(sequence, { maxTokens: 40, draft: { model: second, tokens: 2 } })
  const got = [(await generation.next()).value]
  // It rests with tokens that are not read yet.
  for (let steps = -1; steps < model.cache.stats().activeBlocks; await turn()) {
    steps = model.cache.stats().activeBlocks
    for (let rest = 0; rest < 20; rest++) await turn()
  }
  t.true(second.cache.freeCount < 7, `${second.cache.freeCount} blocks are free`)
  t.deepEqual(await chat(second, ids(28, 2), { maxTokens: 4 }), alone(ids(28, 2), 4))
  for await (const token of generation) got.push(token)
  t.deepEqual(got, alone(ids(20, 1), 40))
  sequence.dispose()
  await isWhole(t, second)
  await isWhole(t, model)
})

test('a function of between that waits for its own model is refused, and the model goes on', async t => {
  const { model } = small(16)
  using sequence = model.open({ tokens: [1, 2, 3] })
  await rejected(
    model.between(() => model.run([{ sequence, tokens: [4] }])),
    'BUSY',
  )
  await rejected(
    model.between(async () => {
      await turn()
      return all(model.generate(sequence, { maxTokens: 2 }))
    }),
    'BUSY',
  )
  // Others only wait until the function is done, and so does what it leaves behind.
  let later: Promise<number[]> | undefined
  const other = await Promise.all([
    chat(model, [5, 6], { maxTokens: 2 }),
    model.between(async () => {
      await turn()
      later = turn()
        .then(turn)
        .then(() => chat(model, [7, 8], { maxTokens: 2 }))
    }),
  ])
  t.deepEqual(other[0], alone([5, 6], 2))
  t.deepEqual(await later, alone([7, 8], 2))
  t.deepEqual(await all(model.generate(sequence, { maxTokens: 2 })), alone([1, 2, 3], 2))
  sequence.dispose()
  await isWhole(t, model)
})

test('a refusal names the code in one line', async t => {
  const { model } = small(4)
  using sequence = model.open()
  const error: KvTideError = await rejected(model.run([{ sequence, tokens: ids(40) }]), 'OUT_OF_BLOCKS')
  t.regex(error.message, /^10 blocks are needed/)
  sequence.dispose()
  await isWhole(t, model)
})

test('forks that arrive in each turn of the event loop do not stop the chat that they were taken of', async t => {
  const { model } = small(12, { stepTokens: 4 })
  const prompt = ids(21)
  const sequence = model.open({ tokens: prompt })
  await model.run([{ sequence }])
  let isDone = false
  const answer = all(model.generate(sequence, { maxTokens: 24 })).finally(() => (isDone = true))
  const forks: Promise<unknown>[] = []
  // oxlint-disable-next-line no-unmodified-loop-condition
  while (!isDone && forks.length < 2000) {
    for (let at = 0; at < 4; at++) {
      const [fork, { tokens }] = [sequence.fork(), sequence]
      const said = all(model.generate(fork, { maxTokens: 8 })).finally(() => fork.dispose())
      forks.push(outcome(said).then(got => typeof got === 'string' || t.deepEqual(got, alone([...tokens], 8))))
    }
    await turn()
  }
  t.true(isDone, `${forks.length} forks have come`)
  t.deepEqual(await answer, alone(prompt, 24))
  await Promise.all(forks)
  sequence.dispose()
  await isWhole(t, model)
})

test('disposing of a snapshot or of a match wakes what waits for its blocks', async t => {
  const { model } = small(8)
  const shared = nativeArgument<SharedCache>('cache', model.cache, PagedKvCache)
  using sequence = model.open({ tokens: ids(8) })
  await model.run([{ sequence }])
  for (const held of [sequence.snapshot(), model.cache.match(ids(8))]) {
    let woken = 0
    const waiting = { wake: () => void (woken += 1), end: () => undefined }
    shared.wait(waiting)
    await turn()
    t.is(woken, 0)
    held.dispose()
    await turn()
    t.is(woken, 1)
    shared.leave(waiting)
  }
})
