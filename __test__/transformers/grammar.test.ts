// Grammars for models of transformers.js: greedy answers are texts of the grammar, also in a chat, and they end where the text is complete.
import test from 'ava'

import { CachedModel, type CachedGenerateOptions } from '../../transformers.js'
import { END, isDocument, SCHEMA, textOf, vocabulary } from '../support/grammar/vocabulary.js'
import { references } from '../support/llama/references.js'
import { promptOf } from '../support/onnx/chat.js'
import { rejected } from '../support/throws.js'
import { idsOf, loadModel, row } from '../support/transformers/model.js'
import type { Model } from '../support/transformers/package.js'

const prompts = Object.keys(references.prompts)
let model: Model
test.before(async () => {
  model = await loadModel()
})

async function answer(
  cached: CachedModel<Model>,
  ids: readonly number[],
  options: CachedGenerateOptions & Record<string, unknown>,
): Promise<number[]> {
  const output = await cached.generate({
    input_ids: row(ids),
    max_new_tokens: 120,
    do_sample: false,
    ...options,
  } as never)
  return idsOf(output as never).slice(ids.length)
}

test('answers are documents of the schema, as those of an OnnxModel, and end without an end token', async t => {
  using cached = await CachedModel.of(model, { cache: { memoryBytes: 2 ** 23, blockSize: 4 } })
  for (const name of prompts) {
    const tokens = await answer(cached, promptOf(name), { grammar: { json: SCHEMA }, vocabulary })
    const text = tokens.filter(token => token !== END)
    t.true(isDocument(textOf(text)), textOf(text))
    t.deepEqual(text, tokens)
  }
  using chat = cached.cache.openSequence()
  const first = await answer(cached, promptOf('p7'), { grammar: { regex: '(?:ab){2}' }, vocabulary, sequence: chat })
  t.is(textOf(first), 'abab')
  const second = await answer(cached, [...promptOf('p7'), ...first, 9], {
    grammar: { regex: 'c{3}' },
    vocabulary,
    sequence: chat,
  })
  t.is(textOf(second), 'ccc')
})

test('hooks of the caller are called too, and the end is allowed where the text is complete', async t => {
  using cached = await CachedModel.of(model)
  const seen: number[] = []
  const processor = (ids: readonly (readonly bigint[])[], logits: { readonly data: Float32Array }): object => {
    seen.push(ids[0]?.length ?? 0)
    logits.data[END] = 1e6
    return logits
  }
  const options = { grammar: { regex: 'a{3}b*' }, vocabulary, eos_token_id: END }
  const tokens = await answer(cached, [5, 6], { ...options, logits_processor: [processor] })
  t.is(textOf(tokens.filter(token => token !== END)), 'aaa')
  t.deepEqual(seen, [2, 3, 4, 5])
  let stops = 0
  const criterion = (ids: readonly unknown[]): boolean[] => ids.map(() => (stops += 1) === 2)
  t.is(textOf(await answer(cached, [5, 6], { ...options, stopping_criteria: criterion })), 'aa')
})

test('wrong ones are refused before anything is computed', async t => {
  using cached = await CachedModel.of(model)
  await rejected(answer(cached, [5], { grammar: { regex: 'a' } }), 'INVALID_ARGUMENT')
  await rejected(answer(cached, [5], { grammar: { regex: '(' }, vocabulary }), 'INVALID_GRAMMAR')
  await rejected(answer(cached, [5], { grammar: {} as never, vocabulary }), 'INVALID_ARGUMENT')
  t.is(cached.cache.stats().promptTokens, 0)
})
