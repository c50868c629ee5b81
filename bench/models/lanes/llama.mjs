// One measurement of llama.cpp, by node-llama-cpp: see kvtide.mjs.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const { file, ids, threads, chats, count, packages } = JSON.parse(process.argv[2])
const { getLlama } = await import(pathToFileURL(createRequire(`${packages}/`).resolve('node-llama-cpp')).href)
const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: threads })
const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 })
const loaded = process.resourceUsage().maxRSS / 1024
const contextSize = ids.length + count + 64
const context = await model.createContext({ contextSize, sequences: chats, threads, batchSize: 512 })
const sequences = Array.from({ length: chats }, () => context.getSequence())
const streams = sequences.map(sequence => sequence.evaluate(ids, { temperature: 0 }))
const start = performance.now()
const tokens = await Promise.all(streams.map(async stream => [(await stream.next()).value]))
const first = performance.now()
const before = process.cpuUsage()
await Promise.all(
  streams.map(async (stream, chat) => {
    for (let at = 0; at < count; at++) tokens[chat].push((await stream.next()).value)
  }),
)
const last = performance.now()
const { user, system } = process.cpuUsage(before)
const peak = process.resourceUsage().maxRSS / 1024
const answer = {
  prompt: first - start,
  token: (last - first) / count / chats,
  cpu: (user + system) / 1000 / count / chats,
  loaded,
  peak,
  tokens: tokens[0].slice(0, 8).join(),
}
if (chats === 1) {
  await streams[0].return()
  const [sequence] = sequences
  await sequence.eraseContextTokenRanges([{ start: ids.length, end: sequence.nextTokenIndex }])
  const asked = performance.now()
  await sequence.evaluate(ids.slice(0, 16), { temperature: 0 }).next()
  answer.second = performance.now() - asked
}
console.log(JSON.stringify(answer))
process.exit(0)
