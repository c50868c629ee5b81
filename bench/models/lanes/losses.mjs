// Losses of a model over the pages of a format: a JSON object of perplexity.mjs as argument, a line of JSON as answer.
import { readFileSync } from 'node:fs'

import { OnnxModel } from 'kvtide/onnx'

/** Tokens whose logits are returned at once. */
const CHUNK = 64

const { graph, contexts, cache } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const model = await OnnxModel.load(graph, { cache: { memoryBytes: 2 ** 29, ...cache } })

/** The loss of each next token, and the token that the model puts first. */
function read(logits, next) {
  const width = logits.length / next.length
  return next.map((token, place) => {
    const row = logits.subarray(place * width, (place + 1) * width)
    let best = 0
    for (let id = 1; id < width; id++) if (row[id] > row[best]) best = id
    let sum = 0
    for (let id = 0; id < width; id++) sum += Math.exp(row[id] - row[best])
    return { loss: Math.log(sum) + row[best] - row[token], best }
  })
}

const losses = []
const firsts = []
for (const [place, ids] of contexts.entries()) {
  const sequence = model.open({ salt: `${place}` })
  const late = ids.length >> 1
  await model.run([{ sequence, tokens: ids.slice(0, late - 1) }])
  for (let at = late - 1; at < ids.length - 1; at += CHUNK) {
    const tokens = ids.slice(at, Math.min(at + CHUNK, ids.length - 1))
    const [logits] = await model.run([{ sequence, tokens }], { logits: 'all' })
    for (const { loss, best } of read(logits, ids.slice(at + 1, at + 1 + tokens.length))) {
      losses.push(loss)
      firsts.push(best)
    }
  }
  sequence.dispose()
}
// Elements of K and V in all layers, per token.
const elements = model.layers.reduce(
  (sum, { layers, numKvHeads, headDim, valueHeadDim }) => sum + layers.length * numKvHeads * (headDim + valueHeadDim),
  0,
)
console.log(JSON.stringify({ losses, firsts, bits: (8 * model.cache.bytesPerToken) / elements }))
await model.dispose()
