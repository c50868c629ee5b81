// The demo's model: what a new user sees first. It answers the questions of npm start behind a long prompt, in f32 and in int4.
import { statSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import test from 'ava'
import { TextModel } from 'kvtide/text'

import { answerOf, NOTES, QUESTIONS } from '../../examples/start/village.js'

const folder = fileURLToPath(new URL('../../packages/serve/demo', import.meta.url))
const MOST = { f32: 5_000_000, q4: 1_000_000 }

for (const [dtype, file] of [
  ['f32', 'model.onnx'],
  ['q4', 'model_q4.onnx'],
] as const) {
  test(`the demo's model in ${dtype} answers, tells stories, and ends its answers`, async t => {
    t.true(statSync(`${folder}/onnx/${file}`).size <= MOST[dtype])
    await using model = await TextModel.load(folder, { dtype, threads: 1, cache: { memoryBytes: 2 ** 25 } })
    t.is(model.toolFamily, 'hermes')
    t.is(model.contextLength, 2048)
    const ask = async (question: string, notes?: string): Promise<string> => {
      const system = notes === undefined ? [] : [{ role: 'system', content: notes } as const]
      const messages = [...system, { role: 'user', content: question } as const]
      const generation = model.chat({ messages, maxTokens: 200, temperature: 0 })
      const answer = await generation.text()
      t.is(generation.finishReason, 'stop', question)
      return answer
    }
    const wrong: string[] = []
    for (const question of QUESTIONS) {
      const answer = await ask(question, NOTES)
      if (answer !== answerOf(question)) wrong.push(`${question} ${answer}`)
    }
    t.log(`${QUESTIONS.length - wrong.length} of ${QUESTIONS.length} answers are right`, wrong)
    t.true(wrong.length <= 2)
    t.regex(await ask('Tell me a story about an owl and a boat.'), /owl.*boat/s)
    t.is(await ask('What is a KV cache?'), answerOf('What is a KV cache?') as string)
  })
}
