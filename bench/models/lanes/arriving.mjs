// One measurement of kvtide with chats that arrive at any time: see kvtide.mjs. A chat comes once the earlier ones have drawn a number of tokens, which a generator
// with a fixed seed draws between none and all of them.
import { OnnxModel } from 'kvtide/onnx'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const model = await OnnxModel.load(graph, { threads, cache: { memoryBytes: 2 ** 29 } })

let seed = 1
const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647
/** The number of tokens, of all chats, after which each chat arrives. */
const arrivals = [0]
for (let chat = 1; chat < chats; chat++)
  arrivals.push(Math.max(arrivals[chat - 1], Math.floor(random() * chat * count)))

let drawn = 0
const running = []
function arrive() {
  while (running.length < chats && drawn >= arrivals[running.length]) running.push(answered(running.length))
}

async function answered(chat) {
  const sequence = model.open({ salt: `${chat}`, tokens: ids })
  let own = 0
  for await (const _ of model.generate(sequence, { maxTokens: count + 1, ignoreEndOfSequence: true })) {
    own++
    drawn++
    arrive()
  }
  if (own !== count + 1) throw new Error(`chat ${chat} ended after ${own} tokens of ${count + 1}`)
}

const start = performance.now()
arrive()
for (let chat = 0; chat < chats; chat++) await running[chat]
console.log(JSON.stringify({ total: performance.now() - start }))
await model.dispose()
