// Speculative decoding: a step verifies several drafted tokens at once, and the answer stays the same.
//
//   npx tsx examples/speculation.ts [model.onnx]
import { PagedKvCache } from 'kvtide'
import { OnnxModel } from 'kvtide/onnx'

const path = process.argv[2] ?? '__test__/fixtures/llama/onnx/model.onnx'
await using model = await OnnxModel.load(path, { cache: { memoryBytes: 2 ** 24 } })
const prompt = Array.from({ length: 40 }, (_, at) => 3 + (at % 10)) // text that repeats itself

for (const draft of [undefined, 'lookup'] as const) {
  using chat = model.open({ tokens: prompt, salt: draft ?? 'none' })
  const tokens: number[] = []
  for await (const token of model.generate(chat, { maxTokens: 24, temperature: 0, ...(draft && { draft }) }))
    tokens.push(token)
  console.log((draft ?? 'one by one').padEnd(10), tokens.join(' '))
}

// By hand: tokens that are drafted in a transaction leave no trace unless it is committed. Plain appends need no transaction.
using cache = new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 2 })
using sequence = cache.openSequence()
const rows = (n: number) => ({ data: new Float32Array(n * 2), shape: [1, 1, n, 2] })
sequence.append({ tokens: [1, 2, 3], k: rows(3), v: rows(3) })
{
  using draft = sequence.begin()
  draft.append({ tokens: [4, 5, 6], parents: [-1, 0, 0], k: rows(3), v: rows(3) }) // a tree: 5 and 6 both follow 4
  draft.commitPath([0, 2]) // the model accepted 4 and 6
}
console.log('kept', sequence.length, 'tokens') // 5
