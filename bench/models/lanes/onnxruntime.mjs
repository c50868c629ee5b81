// One measurement of onnxruntime-node in a loop of its own, which passes the presents of a step to the next, with one static batch of all chats: see kvtide.mjs.
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import * as ort from 'onnxruntime-node'

import { timed } from './timed.mjs'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const session = await ort.InferenceSession.create(graph, { intraOpNumThreads: threads })
const loaded = process.resourceUsage().maxRSS / 1024

const isPast = name => name.startsWith('past')
const presentOf = name => name.replace(/^past(_key_values)?/, 'present')
const integers = (dims, valueOf) =>
  new ort.Tensor('int64', BigInt64Array.from({ length: dims[0] * dims[1] }, valueOf), dims)

/** onnxruntime-genai's builder names the size of a head, and has it in a config. */
const config = join(dirname(graph), 'genai_config.json')
const headSize = existsSync(config) ? JSON.parse(readFileSync(config, 'utf8')).model.decoder.head_size : undefined
const sizeOf = dim => (typeof dim === 'number' ? dim : headSize)

const EMPTY = { float32: new Float32Array(), float16: new Uint16Array() }

/** The pasts before the first token. */
const empty = Object.fromEntries(
  session.inputMetadata
    .filter(({ name }) => isPast(name))
    .map(({ name, shape, type }) => [name, new ort.Tensor(type, EMPTY[type], [chats, shape[1], 0, sizeOf(shape[3])])]),
)

/** The place of the largest number. Halves come as their bits, which have the order of numbers but for the sign. */
function largest(row) {
  const isHalf = row instanceof Uint16Array
  const valueOf = isHalf ? bits => (bits < 0x8000 ? bits : 0x8000 - bits) : value => value
  let best = 0
  for (let id = 1; id < row.length; id++) if (valueOf(row[id]) > valueOf(row[best])) best = id
  return best
}

/** Computes tokens of all chats behind pasts. Returns each chat's next token, the pasts behind them, and their number of tokens. */
async function step(rows, { pasts, length }) {
  const next = rows[0].length
  const given = {
    input_ids: integers([chats, next], (_, at) => BigInt(rows[Math.floor(at / next)][at % next])),
    attention_mask: integers([chats, length + next], () => 1n),
    position_ids: integers([chats, next], (_, at) => BigInt(length + (at % next))),
  }
  const feeds = Object.fromEntries(session.inputNames.map(name => [name, pasts[name] ?? given[name]]))
  const outputs = await session.run(feeds)
  const { data, dims } = outputs.logits
  const width = dims[2]
  const tokens = rows.map((_, chat) =>
    largest(data.subarray(((chat + 1) * dims[1] - 1) * width, (chat + 1) * dims[1] * width)),
  )
  const presents = Object.fromEntries(Object.keys(pasts).map(name => [name, outputs[presentOf(name)]]))
  return { tokens, state: { pasts: presents, length: length + next } }
}

const steps = [step(Array(chats).fill(ids), { pasts: empty, length: 0 })]
const after = async at => {
  const { tokens, state } = await at
  return step(
    tokens.map(token => [token]),
    state,
  )
}
/** The tokens of all chats in a step, which the first chat to ask for computes. */
const stepAt = at => (steps[at] ??= after(steps[at - 1]))
const streams = Array.from({ length: chats }, (_, chat) => {
  let at = 0
  return { next: async () => ({ value: (await stepAt(at++)).tokens[chat] }) }
})
const answer = { ...(await timed(streams, count)), loaded }
if (chats === 1) {
  const { state } = await steps[0]
  const asked = performance.now()
  await step([ids.slice(0, 16)], state)
  answer.second = performance.now() - asked
}
console.log(JSON.stringify(answer))
await session.release()
