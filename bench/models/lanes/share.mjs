// kvtide's own share of a token: see kvtide.mjs. With one thread, a graph is computed on one of Node's pool threads, and everything else happens on the main thread:
// the scheduler, the crossing into the addon, the choice of the token. The share is the processor time of the main thread over that of the process, for the first
// tokens of a process, and for those after V8 has compiled the code.
import { readFileSync } from 'node:fs'

import { OnnxModel } from 'kvtide/onnx'

const FIRST = 64
const WARM = 400
const LAST = 1600

const { graph, ids, threads } = JSON.parse(process.argv[2])
const model = await OnnxModel.load(graph, { threads, cache: { memoryBytes: 2 ** 29 } })

/** Nanoseconds of processor time of the main thread, and of all. */
function times() {
  const [own] = readFileSync(`/proc/self/task/${process.pid}/schedstat`, 'utf8').split(' ')
  const { user, system } = process.cpuUsage()
  return { own: Number(own), all: (user + system) * 1000 }
}

const sequence = model.open({ tokens: ids })
const marks = new Map()
let drawn = 0
for await (const _ of model.generate(sequence, { maxTokens: LAST + 1, ignoreEndOfSequence: true })) {
  if ([0, FIRST, WARM, LAST].includes(drawn)) marks.set(drawn, times())
  drawn++
}

function shareBetween(from, to) {
  const [before, after] = [marks.get(from), marks.get(to)]
  return (after.own - before.own) / (after.all - before.all)
}
console.log(JSON.stringify({ firstShare: shareBetween(0, FIRST), share: shareBetween(WARM, LAST) }))
await model.dispose()
