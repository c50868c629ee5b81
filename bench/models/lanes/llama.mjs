// One measurement of llama.cpp, by node-llama-cpp: see kvtide.mjs.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

import { timed } from './timed.mjs'

const { file, ids, threads, chats, count, packages } = JSON.parse(process.argv[2])
const { getLlama } = await import(pathToFileURL(createRequire(`${packages}/`).resolve('node-llama-cpp')).href)
const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: threads })
const model = await llama.loadModel({ modelPath: file, gpuLayers: 0 })
const loaded = process.resourceUsage().maxRSS / 1024
const contextSize = ids.length + count + 64
const context = await model.createContext({ contextSize, sequences: chats, threads, batchSize: 512 })
const sequences = Array.from({ length: chats }, () => context.getSequence())
const streams = sequences.map(sequence => sequence.evaluate(ids, { temperature: 0, yieldEogToken: true }))
const answer = { ...(await timed(streams, count)), loaded }
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
