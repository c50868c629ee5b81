// One measurement of kvtide: a JSON object of main.ts as argument, a line of JSON as answer. Times are in milliseconds.
import { OnnxModel } from 'kvtide/onnx'

import { timed } from './timed.mjs'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const model = await OnnxModel.load(graph, { threads, cache: { memoryBytes: 2 ** 29 } })
const loaded = process.resourceUsage().maxRSS / 1024
const sequences = Array.from({ length: chats }, (_, chat) => model.open({ salt: `${chat}`, tokens: ids }))
const generations = new Set()
// The first prompt alone, for a second question behind it: a model with windows cannot return to its end after a long answer.
let prompt
const answer = await timed(sequences.map(streamOf), count)
await Promise.all([...generations].map(generation => generation.return()))

/** The first token of a sequence, then others, which are computed from their first request on: one generation would compute ahead while other chats wait for theirs. */
function streamOf(sequence) {
  let rest
  return {
    async next() {
      if (rest !== undefined) return rest.next()
      const first = model.generate(sequence, { maxTokens: 1, ignoreEndOfSequence: true })
      const token = await first.next()
      await first.return()
      prompt ??= sequence.fork()
      // As the peers, it goes on behind the end of a sequence.
      rest = model.generate(sequence, { maxTokens: count, ignoreEndOfSequence: true })
      generations.add(rest)
      return token
    },
  }
}

/** Milliseconds for the first token behind a sequence and 16 tokens. */
async function asked(sequence, tokens = []) {
  const start = performance.now()
  await model.generate(sequence, { tokens, maxTokens: 1 }).next()
  return performance.now() - start
}
// A second question about the same prompt: behind the first one, without its answer, as the peers do it; then in a sequence of its own, for which the cache
// finds whole blocks of the prompt.
const second = await asked(prompt, ids.slice(0, 16))
const found = await asked(model.open({ salt: '0', tokens: [...ids, ...ids.slice(-16)] }))
console.log(JSON.stringify({ ...answer, second, found, loaded }))
await model.dispose()
