// Losses of a model in llama.cpp over a KV cache of some types: see losses.mjs.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const { file, contexts, cache, packages } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
/** Bits for an element, with its share of the scales. */
const BITS = { F32: 32, F16: 16, Q8_0: 8.5, Q4_0: 4.5 }
const { keyType, valueType } = cache

const { getLlama } = await import(pathToFileURL(createRequire(`${packages}/`).resolve('node-llama-cpp')).href)
const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error' })
const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 })
const context = await model.createContext({
  contextSize: Math.max(...contexts.map(ids => ids.length)) + 8,
  batchSize: 512,
  // It has no other attention over values of few bits.
  flashAttention: true,
  experimentalKvCacheKeyType: keyType,
  experimentalKvCacheValueType: valueType,
})
const sequence = context.getSequence()

const losses = []
const firsts = []
for (const ids of contexts) {
  await sequence.clearHistory()
  const late = ids.length >> 1
  const asked = ids.slice(0, -1).map((id, at) => {
    if (at < late - 1) return id
    const logits = { filter: { tokens: [ids[at + 1]], includeSelected: true } }
    return [id, { generateNext: { token: true, options: { temperature: 0 }, totalLogitWeight: true, logits } }]
  })
  const answers = await sequence.controlledEvaluate(asked)
  for (const [at, { next }] of answers.slice(late - 1).entries()) {
    // The token of temperature 0 has the largest logit, and the weights of all are relative to it.
    const largest = next.logits.get(next.token)
    losses.push(Math.log(next.totalLogitWeight) + largest - next.logits.get(ids[late + at]))
    firsts.push(next.token)
  }
}
console.log(JSON.stringify({ losses, firsts, bits: (BITS[keyType] + BITS[valueType]) / 2 }))
process.exit(0)
