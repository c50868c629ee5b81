// One measurement of kvtide: a JSON object of main.ts as argument, a line of JSON as answer. Times are in milliseconds.
import { OnnxModel } from 'kvtide/onnx'

import { timed } from './timed.mjs'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const model = await OnnxModel.load(graph, { threads, cache: { memoryBytes: 2 ** 29 } })
const loaded = process.resourceUsage().maxRSS / 1024
const sequences = Array.from({ length: chats }, (_, chat) => model.open({ salt: `${chat}`, tokens: ids }))
const generations = sequences.map(sequence => model.generate(sequence, { maxTokens: count + 1 }))
const answer = await timed(generations, count)
await Promise.all(generations.map(generation => generation.return()))
// A second question about the same prompt.
const again = model.open({ salt: '0', tokens: [...ids, ...ids.slice(0, 16)] })
const asked = performance.now()
await model.generate(again, { maxTokens: 1 }).next()
console.log(JSON.stringify({ ...answer, second: performance.now() - asked, loaded }))
await model.dispose()
