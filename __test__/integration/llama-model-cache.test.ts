// A small Llama on a PagedKvCache of its config.json, against the greedy tokens of HF transformers.
import test from 'ava'

import { type ModelCacheOptions, PagedKvCache } from '../../index.js'
import { best, decode, prefill } from '../support/llama/decoder.js'
import { Llama } from '../support/llama/llama.js'
import { distance, referenceLogits, references } from '../support/llama/references.js'
import { stepping } from '../support/llama/stepping.js'

const model = new Llama()
const { prompts, greedy } = references
const [p33, p100, branch60] = ['p33', 'p100', 'branch60'].map(name => prompts[name]) as [
  readonly number[],
  readonly number[],
  readonly number[],
]
const config = model.config as unknown as ModelCacheOptions['model']

const KINDS = {
  'blocks of 16': () => new PagedKvCache({ model: config, capacity: 32 }),
  'blocks of 4': () => new PagedKvCache({ model: config, blockSize: 4, capacity: 128 }),
}

for (const [kind, make] of Object.entries(KINDS)) {
  test(`${kind}: a prompt in chunks and its greedy continuation`, t => {
    using cache = make()
    const attention = stepping(model, cache, cache.openSequence())
    const logits = prefill(model, p33, attention, 7)
    t.true(distance(logits, referenceLogits('logits.p33')) < 1e-4)
    t.deepEqual(decode(model, logits, 32, 64, attention).tokens, greedy['p33'])
    cache.checkInvariants()
  })

  test(`${kind}: a prompt that shares its start with another`, t => {
    using cache = make()
    const first = cache.openSequence()
    prefill(model, p100, stepping(model, cache, first, p100))
    const match = cache.match(branch60)
    t.is(match.length, cache.blockSize === 16 ? 48 : 60)
    const second = cache.openSequence({ prefix: match })
    const done = second.length
    const attention = stepping(model, cache, second, branch60)
    const logits = prefill(model, branch60.slice(done), attention, 20, done)
    t.deepEqual(decode(model, logits, branch60.length - 1, 64, attention).tokens, greedy['branch60'])
    t.is(first.length, 100)
  })

  test(`${kind}: drafted tokens are kept as far as the model agrees`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    const attention = stepping(model, cache, sequence)
    const wanted = greedy['p33'] as readonly number[]
    const { vocab_size: vocabulary } = model.config
    let next = best(prefill(model, p33, attention).slice(-vocabulary))
    const found: number[] = []
    const kept: number[] = []
    for (let round = 0; found.length < 40; round++) {
      // A draft that is right up to some token, which differs from round to round.
      const tokens = [next, ...wanted.slice(found.length + 1, found.length + 4)].map((token, at) =>
        at > round % 4 ? (token + 1) % vocabulary : token,
      )
      using draft = sequence.begin()
      const logits = model.forward(
        tokens,
        tokens.map((_, at) => sequence.length + at),
        attention,
      )
      const answers = tokens.map((_, at) => best(logits.slice(at * vocabulary, (at + 1) * vocabulary)))
      const agreed = tokens.findIndex((_, at) => answers[at] !== tokens[at + 1]) + 1
      found.push(...tokens.slice(0, agreed))
      kept.push(agreed)
      next = answers[agreed - 1] as number
      draft.commit(agreed)
      t.is(sequence.length, 33 + found.length)
    }
    t.deepEqual(found.slice(0, 40), wanted.slice(0, 40))
    t.deepEqual([...new Set(kept)].toSorted(), [1, 2, 3, 4])
    cache.checkInvariants()
  })
}
