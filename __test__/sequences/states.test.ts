// Layers with states: a state is the running hash of all tokens of its sequence, so that a state that was cut, mixed up or written after it was shared is
// seen.
import test from 'ava'

import { type ModelCacheOptions, PagedKvCache, type Sequence } from '../../index.js'
import { LentRun } from '../../lib/sequences/lent-run.js'
import { StepRun } from '../../lib/sequences/step-run.js'
import { folderOf } from '../support/folder.js'
import { throwsCode } from '../support/throws.js'

const full = { kind: 'full', numKvHeads: 1, headDim: 2 } as const
const conv = { name: 'conv', shape: [3, 5], dtype: 'f16' } as const
const ssm = { name: 'ssm', shape: [7, 3], dtype: 'f32' } as const
const HYBRID = { layers: [full, { kind: 'state', tensors: [conv, ssm] }, { ...full, tensors: [conv] }] } as const
const MAMBA = { layers: [{ kind: 'state', tensors: [ssm] }] } as const
const MODELS: readonly ModelCacheOptions['model'][] = [HYBRID, MAMBA]

const prefixKey = new Uint8Array(32).fill(7)
const cacheOf = (model: ModelCacheOptions['model'], options: Partial<ModelCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 60, blockSize: 4, model, prefixKey, ...options })

const ids = (first: number, count: number): number[] => Array.from({ length: count }, (_, at) => first + at)

/** The states after these tokens. */
function follow(before: Uint8Array, tokens: readonly number[]): Uint8Array {
  if (tokens.length === 0) return before
  let hash = new DataView(before.buffer, before.byteOffset).getUint32(0)
  for (const token of tokens) {
    hash = Math.imul(hash ^ (token + 1), 0x9e3779b1) >>> 0
    hash = (hash ^ (hash >>> 15)) >>> 0
  }
  return before.map((_, at) => (hash >>> (24 - (at % 4) * 8)) & 0xff)
}

const bytesOf = (cache: PagedKvCache): number => cache.groups.at(-1)?.bytes ?? 0

const statesOf = (cache: PagedKvCache, tokens: readonly number[]): Uint8Array =>
  follow(new Uint8Array(bytesOf(cache)), tokens)

const rows = (tokens: readonly number[]) => ({
  data: Float32Array.from(tokens.flatMap(token => [token, token])),
  shape: [1, tokens.length, 2],
})

const attention = (cache: PagedKvCache): readonly number[] =>
  cache.groups.filter(group => group.kind !== 'state').flatMap(group => group.layers)

type Share = readonly [sequence: Sequence, tokens: readonly number[]]

const offsetsOf = (shares: readonly Share[]): number[] =>
  shares.reduce<number[]>((all, [, tokens]) => [...all, (all.at(-1) as number) + tokens.length], [0])

/** A step whose states follow from those before it. */
function step(cache: PagedKvCache, ...shares: readonly Share[]): void {
  const all = shares.flatMap(([, tokens]) => tokens)
  using open = cache.beginStep({ sequences: shares.map(([of]) => of), offsets: offsetsOf(shares) })
  for (const layer of attention(cache)) open.write(layer, rows(all), rows(all))
  for (const [index, [, tokens]] of shares.entries())
    if (tokens.length > 0) open.writeStates(index, follow(open.readStates(index), tokens))
  open.commit(all)
}

for (const model of MODELS) {
  const name = model === HYBRID ? 'a hybrid model' : 'a model without attention'

  test(`${name}: alone, batched, forked, cut`, t => {
    using cache = cacheOf(model)
    const [one, other] = [cache.openSequence(), cache.openSequence()]
    const check = (sequence: Sequence, tokens: readonly number[]): void => {
      t.is(sequence.length, tokens.length)
      t.deepEqual(sequence.states(), statesOf(cache, tokens))
    }
    check(one, [])
    step(cache, [one, ids(0, 8)])
    check(one, ids(0, 8))
    step(cache, [other, ids(50, 3)], [one, ids(8, 1)])
    check(one, ids(0, 9))
    check(other, ids(50, 3))
    const fork = one.fork()
    step(cache, [fork, ids(70, 3)], [other, []], [one, ids(9, 1)])
    check(fork, [...ids(0, 9), ...ids(70, 3)])
    check(one, ids(0, 10))
    check(other, ids(50, 3))

    const error = throwsCode(t, 'CANNOT_ROLL_BACK', () => one.truncate(9))
    t.deepEqual(error.details, { requested: 9, seqLen: 10, reason: 'no state', below: 8, above: 10 })
    one.truncate(8)
    check(one, ids(0, 8))
    step(cache, [one, [77]])
    check(one, [...ids(0, 8), 77])
    other.truncate(0)
    check(other, [])

    const snapshot = fork.snapshot()
    step(cache, [fork, [1, 2]])
    fork.restore(snapshot)
    check(fork, [...ids(0, 9), ...ids(70, 3)])
  })

  test(`${name}: drafted tokens are kept or dropped together`, t => {
    using cache = cacheOf(model)
    const one = cache.openSequence()
    step(cache, [one, ids(0, 5)])
    {
      using draft = one.begin()
      step(cache, [one, ids(5, 3)])
      t.deepEqual(one.states(), statesOf(cache, ids(0, 8)))
      throwsCode(t, 'CANNOT_ROLL_BACK', () => draft.commit(2))
    }
    t.deepEqual(one.states(), statesOf(cache, ids(0, 5)))
    using draft = one.begin()
    step(cache, [one, ids(5, 4)])
    draft.commit()
    t.deepEqual(one.states(), statesOf(cache, ids(0, 9)))
  })

  test(`${name}: prompts find the last checkpoint`, t => {
    using cache = cacheOf(model)
    const one = cache.openSequence()
    step(cache, [one, ids(0, 8)])
    step(cache, [one, ids(8, 7)])
    one.dispose()
    // Attention has a block behind the checkpoint, if there is attention.
    const cached = cache.groups.length > 1 ? 12 : 8
    const { matched, cached: told, missing } = cache.explain(ids(0, 30))
    t.deepEqual([matched, told, missing?.reason], [8, cached, cached > 8 ? 'no-state-here' : 'never-seen'])
    const found = cache.openSequence({ prefix: cache.match(ids(0, 30)) })
    t.is(cache.stats().lostTokens, cached - 8)
    t.is(found.length, 8)
    t.deepEqual(found.states(), statesOf(cache, ids(0, 8)))
    step(cache, [found, ids(40, 5)])
    t.deepEqual(found.states(), statesOf(cache, [...ids(0, 8), ...ids(40, 5)]))
    t.is(found.resume([...ids(0, 8), ...ids(90, 5)]), 8)
    t.deepEqual(found.states(), statesOf(cache, ids(0, 8)))
  })

  test(`${name}: saved and loaded`, async t => {
    using cache = cacheOf(model)
    const one = cache.openSequence()
    step(cache, [one, ids(0, 8)])
    step(cache, [one, ids(8, 3)])
    const [sequence, all] = [await one.saveBytes(), await cache.saveBytes()]

    const again = await cache.loadSequence(sequence)
    t.deepEqual([again.length, again.states()], [11, one.states()])
    step(cache, [again, ids(11, 1)])
    t.deepEqual(again.states(), statesOf(cache, ids(0, 12)))

    using loaded = await PagedKvCache.load(all, { prefixKey })
    t.deepEqual(loaded.groups, cache.groups)
    const found = loaded.openSequence({ prefix: loaded.match(ids(0, 30)) })
    t.deepEqual([found.length, found.states()], [8, statesOf(cache, ids(0, 8))])
  })

  for (const kind of ['memory', 'disk'] as const) {
    test(`${name}: offloaded to ${kind} and restored`, async t => {
      const tiers = kind === 'memory' ? { memory: { limitBytes: 1e6 } } : { disk: { path: await folderOf(t) } }
      using cache = cacheOf(model, { capacity: 10, tiers })
      const one = cache.openSequence()
      step(cache, [one, ids(0, 8)])
      step(cache, [one, ids(8, 8)])
      one.dispose()
      t.true(await cache.flush())
      for (const first of [500, 600, 700]) {
        const other = cache.openSequence()
        for (const at of ids(0, 8)) step(cache, [other, ids(first + at * 4, 4)])
        other.dispose()
      }
      t.is(cache.match(ids(0, 20)).length, 0)

      const match = await cache.match(ids(0, 20), { tiers: 'all' })
      const found = cache.openSequence({ prefix: match })
      t.deepEqual([found.length, found.states()], [16, statesOf(cache, ids(0, 16))])
      await cache.flush()
    })
  }

  test(`${name}: a step that is computed apart`, t => {
    using cache = cacheOf(model)
    const one = cache.openSequence()
    step(cache, [one, ids(0, 5)])
    using open = cache.beginStep({ sequences: [one], offsets: [0, 2] })
    using run = StepRun.of(open)
    t.deepEqual(run.readStates(0), statesOf(cache, ids(0, 5)))
    {
      using lent = LentRun.taken(run.share())
      for (const layer of attention(cache)) lent.write(layer, rows(ids(5, 2)), rows(ids(5, 2)))
      lent.writeStates(0, follow(lent.readStates(0), ids(5, 2)))
      throwsCode(t, 'INVALID_ARGUMENT', () => lent.readStates(1))
      throwsCode(t, 'SHAPE_MISMATCH', () => lent.writeStates(0, new Uint8Array(3)))
      throwsCode(t, 'BUSY', () => run.readStates(0))
    }
    throwsCode(t, 'BUSY', () => open.writeStates(0, new Uint8Array(bytesOf(cache))))
    run.end()
    open.commit(ids(5, 2))
    t.deepEqual(one.states(), statesOf(cache, ids(0, 7)))
  })

  test(`${name}: the tables of a step have no group of states`, t => {
    using cache = cacheOf(model)
    const one = cache.openSequence()
    using batch = cache.stepBatch({ maxSequences: 2, maxBlocks: 4, maxTokens: 8 })
    t.is(batch.groups.length, model === HYBRID ? 1 : 0)
    using open = cache.prepareStep(batch, { sequences: [one], offsets: [0, 6] })
    for (const layer of attention(cache)) open.write(layer, rows(ids(0, 6)), rows(ids(0, 6)))
    t.deepEqual([...open.positions], ids(0, 6))
    open.writeStates(0, statesOf(cache, ids(0, 6)))
    open.commit(ids(0, 6))
    t.deepEqual([...batch.lengths], model === HYBRID ? [6, 0] : [])
    t.deepEqual(one.states(), statesOf(cache, ids(0, 6)))
  })
}

test('a file of a cache without attention has its dtype and its page formats', async t => {
  for (const [dtype, keyFormat] of [
    ['f16', undefined],
    ['bf16', undefined],
    ['f32', 'q8'],
  ] as const) {
    using cache = cacheOf(MAMBA, { dtype, ...(keyFormat === undefined ? {} : { keyFormat }) })
    const one = cache.openSequence()
    step(cache, [one, ids(0, 8)])
    const bytes = await cache.saveBytes()
    using again = await PagedKvCache.load(bytes, { prefixKey })
    t.deepEqual([again.dtype, again.keyFormat, again.valueFormat], [dtype, keyFormat ?? dtype, dtype])
    t.is(again.match(ids(0, 9)).length, 8)
    t.is(await cacheOf(MAMBA, { dtype, ...(keyFormat === undefined ? {} : { keyFormat }) }).loadPrompts(bytes), 1)
  }
})

test('a step needs the states of each sequence with tokens', t => {
  using cache = cacheOf(HYBRID)
  const [one, other] = [cache.openSequence(), cache.openSequence()]
  using open = cache.beginStep({ sequences: [one, other], offsets: [0, 2, 2] })
  for (const layer of [0, 2]) open.write(layer, rows([1, 2]), rows([1, 2]))
  const error = throwsCode(t, 'STEP_INCOMPLETE', () => open.commit())
  t.deepEqual(error.details, { layers: [1, 2] })
  const states = statesOf(cache, [1, 2])
  const wrong = throwsCode(t, 'SHAPE_MISMATCH', () => open.writeStates(0, states.subarray(1)))
  t.true(wrong.message.includes(String(states.length)), wrong.message)
  throwsCode(t, 'INVALID_ARGUMENT', () => open.writeStates(1, states))
  throwsCode(t, 'INVALID_ARGUMENT', () => open.writeStates(2, states))
  throwsCode(t, 'INVALID_ARGUMENT', () => open.readStates(-1))
  throwsCode(t, 'INVALID_ARGUMENT', () => open.writeStates(0, Array.from(states) as never))
  t.deepEqual(open.readStates(1), new Uint8Array(states.length))
  open.writeStates(0, states)
  states.fill(0)
  open.commit()
  t.deepEqual(one.states(), statesOf(cache, [1, 2]))
})

test('calls that cannot write states are refused, and caches without states say so', t => {
  using cache = cacheOf(HYBRID)
  const kv = { k: rows([1]), v: rows([1]) }
  const error = throwsCode(t, 'INVALID_ARGUMENT', () => cache.openSequence().append({ layers: [kv, kv] }))
  t.true(error.message.includes('a step, because layer 1 keeps a state'), error.message)

  using plain = new PagedKvCache({ capacity: 4, numLayers: 1, numKvHeads: 1, headDim: 2 })
  const sequence = plain.openSequence()
  throwsCode(t, 'INVALID_ARGUMENT', () => sequence.states())
  using open = plain.beginStep({ sequences: [sequence] })
  throwsCode(t, 'INVALID_ARGUMENT', () => open.readStates(0))
  throwsCode(t, 'INVALID_ARGUMENT', () => open.writeStates(0, new Uint8Array(0)))
})
