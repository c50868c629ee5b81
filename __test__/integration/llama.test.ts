// A small Llama on caches and attention, compared with HF transformers: every logit, every greedy token.
import test from 'ava'

import { attend, attendAsync, RollbackCache, RotatingKvCache, type HostTensor } from '../../index.js'
import { cached, kvCaches, tokensFirst } from '../support/llama/cached.js'
import { best, decode, prefill } from '../support/llama/decoder.js'
import { Llama } from '../support/llama/llama.js'
import { distance, referenceLogits, references } from '../support/llama/references.js'
import { span } from '../support/tokens.js'

const model = new Llama()
const { prompts, greedy, masked, batch_left_padded: padded } = references
const p33 = prompts['p33'] as readonly number[]
const p100 = prompts['p100'] as readonly number[]

/** The tolerated difference, from summing 32-bit floats in another order. The best two logits always differ by more than 3e-3. */
const TOLERANCE = 1e-4

test('a prompt and its greedy continuation over growing caches, in one piece and in chunks', t => {
  for (const [name, prompt, chunk] of [
    ['p33', p33, 33],
    ['p33', p33, 7],
    ['p100', p100, 32],
  ] as const) {
    const caches = kvCaches(model)
    const attention = cached(model, (layer, k, v) => (caches[layer] as (typeof caches)[0]).update(k, v))
    const logits = prefill(model, prompt, attention, chunk)
    if (name === 'p33') t.true(distance(logits, referenceLogits('logits.p33')) < TOLERANCE)
    const found = decode(model, logits, prompt.length - 1, 64, attention)
    t.deepEqual(found.tokens, greedy[name])
    t.true(distance(found.logits, referenceLogits(`greedy_logits.${name}`)) < TOLERANCE)
  }
})

test('a prefix that is kept, and another branch behind it', t => {
  const caches = kvCaches(model)
  const attention = cached(model, (layer, k, v) => (caches[layer] as (typeof caches)[0]).update(k, v))
  prefill(model, p100, attention)
  for (const cache of caches) cache.truncate(60)
  const branch = (prompts['branch60'] as readonly number[]).slice(60)
  const logits = prefill(model, branch, attention, branch.length, 60)
  t.deepEqual(decode(model, logits, 79, 64, attention).tokens, greedy['branch60'])
})

for (const [rule, { window, sinks, greedy: wanted }] of Object.entries(masked)) {
  test(`${rule}: in the attention alone, and in a cache that drops tokens`, t => {
    const growing = kvCaches(model)
    const windows = growing.map(() => new RotatingKvCache({ maxSeqLen: window, sinks, slack: 3 }))
    const ways = [
      cached(model, (layer, k, v) => (growing[layer] as (typeof growing)[0]).update(k, v), { window, sinks }),
      // After a chunk, the cache returns the retained tokens and all new ones; each query attends to its window of them.
      cached(model, (layer, k, v) => (windows[layer] as RotatingKvCache).append(k, v), { window, sinks }),
    ]
    for (const attention of ways) {
      const logits = prefill(model, p33, attention, 9)
      t.true(distance(logits, referenceLogits(`masked.${rule}.p33.logits`)) < TOLERANCE)
      const found = decode(model, logits, 32, 64, attention)
      t.deepEqual(found.tokens, wanted)
      t.true(distance(found.logits, referenceLogits(`masked.${rule}.p33.greedy_logits`)) < TOLERANCE)
    }
    // With one token at a time, the cache returns exactly the window, so attention needs no rule.
    const bare = windows.map(() => new RotatingKvCache({ maxSeqLen: window, sinks }))
    const attention = cached(model, (layer, k, v) => (bare[layer] as RotatingKvCache).append(k, v))
    t.deepEqual(decode(model, prefill(model, p33, attention, 1), 32, 64, attention).tokens, wanted)
  })
}

test('four prompts in one batch, padded on the left', t => {
  const batch = padded.order.length
  const starts = Int32Array.from(padded.attention_mask, row => row.indexOf(1))
  const caches = kvCaches(model, batch)
  const attention = cached(
    model,
    (layer, k, v) => (caches[layer] as (typeof caches)[0]).update(k, v),
    { starts },
    batch,
  )
  const { vocab_size: vocabulary } = model.config
  const logits = model.forward(padded.input_ids.flat(), padded.position_ids.flat(), attention)
  const of = (row: number, tokens: number, all: Float32Array): Float32Array =>
    all.slice(((row + 1) * tokens - 1) * vocabulary, (row + 1) * tokens * vocabulary)
  let rows = padded.order.map((_, row) => of(row, 100, logits))
  const wanted = referenceLogits('batch_left_padded.first_logits')
  t.true(
    rows.every((found, row) => distance(found, wanted.slice(row * vocabulary, (row + 1) * vocabulary)) < TOLERANCE),
  )
  const tokens: number[][] = padded.order.map(() => [])
  for (let step = 0; step < 64; step++) {
    const chosen = rows.map(best)
    for (const [row, token] of chosen.entries()) (tokens[row] as number[]).push(token)
    const next = model.forward(
      chosen,
      chosen.map((_, row) => 100 - (starts[row] as number) + step),
      attention,
    )
    rows = chosen.map((_, row) => of(row, 1, next))
  }
  t.deepEqual(tokens, padded.greedy)
})

test('prompts of unequal length in one call, one behind the other', t => {
  const together = ['p7', 'p33', 'p1'].map(name => prompts[name] as readonly number[])
  const offsets = [0, 7, 40, 41]
  const {
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: dim,
    vocab_size: vocabulary,
  } = model.config
  const rows = (data: Float32Array, of: number): HostTensor => ({ data, shape: [41, of, dim] })
  const positions = together.flatMap(prompt => span(0, prompt.length))
  const logits = model.forward(together.flat(), positions, (_, q, k, v) => {
    return attend(
      rows(q, heads),
      { k: rows(k, kvHeads), v: rows(v, kvHeads), kvOffsets: offsets },
      { qOffsets: offsets },
    ).out.toFloat32Array()
  })
  t.true(distance(logits.slice(7 * vocabulary, 40 * vocabulary), referenceLogits('logits.p33')) < TOLERANCE)
  t.is(best(logits.slice(6 * vocabulary, 7 * vocabulary)), (greedy['p7'] as readonly number[])[0] as number)
  t.is(best(logits.slice(40 * vocabulary)), (greedy['p1'] as readonly number[])[0] as number)
})

test('a draft tree is verified in one pass, and its accepted path goes on as if it had been decoded', t => {
  const caches = kvCaches(model).map(() => new RollbackCache())
  const wanted = greedy['p33'] as readonly number[]
  const all = (layer: number): RollbackCache => caches[layer] as RollbackCache
  const chain = cached(model, (layer, k, v) => all(layer).append(k, v))
  prefill(model, p33, chain)
  for (const cache of caches) cache.commit()
  // The first greedy token; two candidates after it, the second one right; and a token that follows the right one.
  const tokens = [wanted[0], 5, wanted[1], wanted[2]] as number[]
  const parents = [-1, 0, 0, 2]
  const positions = Array.from(all(0).treePositions(parents))
  const logits = model.forward(
    tokens,
    positions,
    cached(model, (layer, k, v) => all(layer).append(k, v, { parents }), { tree: parents }),
  )
  const { vocab_size: vocabulary } = model.config
  const steps = referenceLogits('greedy_logits.p33')
  for (const [node, step] of [
    [0, 1],
    [2, 2],
    [3, 3],
  ] as const) {
    const [found, right] = [
      logits.slice(node * vocabulary, (node + 1) * vocabulary),
      steps.slice(step * vocabulary, (step + 1) * vocabulary),
    ]
    t.true(distance(found, right) < TOLERANCE)
  }
  for (const cache of caches) cache.acceptPath([0, 2, 3])
  t.deepEqual(decode(model, logits, 35, 61, chain).tokens, wanted.slice(3))
})

test('attention in the background gives the same bits', async t => {
  const { num_attention_heads: heads, num_key_value_heads: kvHeads, head_dim: dim } = model.config
  const calls: (() => Promise<void>)[] = []
  const rows = (data: Float32Array, of: number): HostTensor => ({
    data,
    shape: [1, data.length / of / dim, of, dim],
    layout: 'bshd',
  })
  prefill(model, p33, (_, q, k, v) => {
    const args = [rows(q, heads), { k: rows(k, kvHeads), v: rows(v, kvHeads) }] as const
    const { out } = attend(...args)
    calls.push(async () => {
      t.true((await attendAsync(...args)).out.equals(out))
    })
    return tokensFirst(out.toFloat32Array(), 1, heads, dim)
  })
  await Promise.all(calls.map(call => call()))
  t.is(calls.length, 3)
})
