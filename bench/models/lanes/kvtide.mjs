// One measurement of kvtide: a JSON object of main.ts as argument, a line of JSON as answer. Times are in milliseconds.
import { OnnxModel } from 'kvtide/onnx'

import { timed } from './timed.mjs'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const model = await OnnxModel.load(graph, { threads, cache: { memoryBytes: 2 ** 29 } })
const loaded = process.resourceUsage().maxRSS / 1024
const sequences = Array.from({ length: chats }, (_, chat) => model.open({ salt: `${chat}`, tokens: ids }))
// As the peers, it goes on behind the end of a sequence.
const options = { maxTokens: count + 1, ignoreEndOfSequence: true }
const generations = sequences.map(sequence => model.generate(sequence, options))
const answer = await timed(generations, count)
await Promise.all(generations.map(generation => generation.return()))
/** Milliseconds for the first token behind a sequence and 16 tokens. */
async function asked(sequence, tokens = []) {
  const start = performance.now()
  await model.generate(sequence, { tokens, maxTokens: 1 }).next()
  return performance.now() - start
}
// A second question about the same prompt: behind the first one, without its answer, as the peers do it; then in a sequence of its own, for which the cache
// finds whole blocks of the prompt.
const [sequence] = sequences
const question = ids.slice(0, 16)
sequence.truncate(ids.length)
const second = await asked(sequence, question)
const found = await asked(model.open({ salt: '0', tokens: [...ids, ...ids.slice(-16)] }))
console.log(JSON.stringify({ ...answer, second, found, loaded }))
await model.dispose()
