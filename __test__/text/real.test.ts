// Real models, which are not part of the repository: KVTIDE_TEXT_MODEL is a folder with SmolLM2-135M-Instruct (builder's f32 graph), whose answers are those of
// transformers. Without it, these tests are SKIPPED by name.
import test from 'ava'

import { type ChatMessage, TextModel } from '../../text.js'

const folder = process.env['KVTIDE_TEXT_MODEL']
const declare = folder === undefined ? test.skip : test
const title = (text: string): string => (folder === undefined ? `SKIPPED: KVTIDE_TEXT_MODEL is not set: ${text}` : text)

/** The greedy answers of transformers 4.57 in float32: the question, and the first 48 tokens of the answer. */
const ANSWERS: readonly (readonly [question: string, ids: readonly number[]])[] = [
  ['What is the capital of France?', [504, 3575, 282, 4649, 314, 7042, 30]],
  [
    'Write a haiku about the sea.',
    [
      504, 6147, 282, 260, 3426, 28, 253, 13879, 6122, 28, 198, 49, 9154, 303, 5082, 282, 260, 10393, 28, 198, 49,
      13151, 282, 260, 6122, 338, 5721, 8823, 28, 198, 49, 13151, 282, 260, 5065, 506, 1149, 30,
    ],
  ],
  [
    'List three colours.',
    [
      33, 30, 3950, 42, 378, 768, 2378, 7302, 1486, 260, 216, 33, 33, 4683, 282, 260, 24594, 30, 198, 34, 30, 10062, 42,
      378, 768, 2378, 7302, 1486, 260, 216, 33, 33, 4683, 282, 260, 24594, 30, 198, 35, 30, 4910, 42, 378, 768, 2378,
      7302, 1486, 260,
    ],
  ],
  ['What is 12 plus 30?', [33, 34, 1232, 216, 35, 32, 446, 216, 35, 34, 30]],
  ["Translate 'good morning' into Spanish.", [56, 922, 28, 877, 264, 3302, 81, 17]],
  ['Who wrote Hamlet? Answer in one sentence.', [29564, 2016, 314, 260, 1238, 2855, 411, 4967, 12081, 30]],
]

declare(title('greedy answers are those of transformers'), async t => {
  await using model = await TextModel.load(folder as string)
  for (const [question, ids] of ANSWERS) {
    const tokens: number[] = []
    const messages: ChatMessage[] = [{ role: 'user', content: question }]
    for await (const event of model.chat({ messages, maxTokens: 48 }).events())
      if (event.type === 'text') tokens.push(...event.tokens)
    t.deepEqual(tokens, ids, question)
  }
})

declare(title('a chat of eight turns computes its new tokens alone'), async t => {
  await using model = await TextModel.load(folder as string)
  const messages: ChatMessage[] = [{ role: 'user', content: 'Tell me a story about a fisherman.' }]
  let before = 0
  for (let turn = 0; turn < 8; turn++) {
    const generation = model.chat({ messages, maxTokens: 40, temperature: 1, seed: turn })
    messages.push(await generation.message(), { role: 'user', content: 'Go on.' })
    const { promptTokens, cachedTokens, generatedTokens } = generation.usage
    t.true(cachedTokens >= before - 16, `turn ${turn}: ${cachedTokens} of ${before}`)
    before = promptTokens + generatedTokens
  }
})
