// One measurement of kvtide: a JSON object of main.mjs as argument, a line of JSON as answer. Times are in milliseconds.
import { OnnxModel } from 'kvtide/onnx'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const model = await OnnxModel.load(graph, { threads, cache: { memoryBytes: 2 ** 29 } })
const loaded = process.resourceUsage().maxRSS / 1024
const sequences = Array.from({ length: chats }, (_, chat) => model.open({ salt: `${chat}`, tokens: ids }))
const generations = sequences.map(sequence => model.generate(sequence, { maxTokens: count + 1 }))
const start = performance.now()
const tokens = await Promise.all(generations.map(async generation => [(await generation.next()).value]))
const first = performance.now()
const before = process.cpuUsage()
await Promise.all(
  generations.map(async (generation, chat) => {
    for await (const token of generation) tokens[chat].push(token)
  }),
)
const last = performance.now()
const { user, system } = process.cpuUsage(before)
const peak = process.resourceUsage().maxRSS / 1024
// A second question about the same prompt.
const again = model.open({ salt: '0', tokens: [...ids, ...ids.slice(0, 16)] })
const asked = performance.now()
await model.generate(again, { maxTokens: 1 }).next()
console.log(
  JSON.stringify({
    prompt: first - start,
    token: (last - first) / count / chats,
    cpu: (user + system) / 1000 / count / chats,
    second: performance.now() - asked,
    loaded,
    peak,
    tokens: tokens[0].slice(0, 8).join(),
  }),
)
await model.dispose()
