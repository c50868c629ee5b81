// A chat on one sequence: further turns, a regenerated answer, an edited history. Only new tokens are computed.
//
//   npx tsx examples/chat.ts [model.onnx]
import { OnnxModel, type OnnxSequence } from 'kvtide/onnx'

const path = process.argv[2] ?? '__test__/fixtures/llama/onnx/model.onnx'
await using model = await OnnxModel.load(path, { cache: { memoryBytes: 2 ** 24 } })

/** Appends a question and returns the answer, both as token ids: docs/onnx.md has an example with a tokenizer. */
async function say(chat: OnnxSequence, tokens: readonly number[]): Promise<number[]> {
  const answer: number[] = []
  for await (const token of model.generate(chat, { tokens, maxTokens: 8, temperature: 0 })) answer.push(token)
  return answer
}

const system = Array.from({ length: 64 }, (_, id) => 3 + id)
using chat = model.open({ tokens: system })
console.log('answer', (await say(chat, [100, 101, 102])).join(' '))
console.log('answer', (await say(chat, [110, 111])).join(' '), '| computed so far:', chat.length)

const before = chat.tokens.length
await say(chat, [120, 121])
chat.truncate(before) // undo the last turn
console.log('again ', (await say(chat, [120, 122])).join(' '))

const edited = [...chat.tokens].with(system.length + 1, 99) // another word in the first question
console.log('kept  ', chat.resume(edited), 'of', edited.length, 'tokens of the edited history')

using other = model.open({ tokens: [...system, 130] }) // another user's chat, with the same system prompt
console.log('found ', other.length, 'tokens cached by another chat with the same start')
