// A day of a chat server in accelerated time: KVTIDE_HOURS_SIMULATED (24 by default) of requests of several tenants on one paged cache with a disk
// tier. Conversations go on after pauses, are edited, branch and end; the clock of the day decides which.
//
// Keys and values follow from the tenant and all tokens so far, so every row that is read tells whether it belongs there. Each request reads its
// last block, and some read everything. Memory in use ends where it began. Run with --expose-gc.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'

import { memoryStats, PagedKvCache } from '../../dist/index.js'

const hours = Number(process.env.KVTIDE_HOURS_SIMULATED ?? 24)
let state = Number(process.env.KVTIDE_SEED ?? Date.now() & 0x7fffffff)
console.log(`KVTIDE_SEED=${state}`)

/** Seconds between two requests, on average. */
const PAUSE = 4
const TENANTS = 5
const CHATS = 60
const TOKENS_MAX = 400
const LAYERS = 2
const DIM = 4
const BLOCK = 8

function below(end) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0
  return Math.floor((state / 2 ** 32) * end)
}

function mix(one, other) {
  let mixed = Math.imul(one ^ (one >>> 15), 0x2c1b3c6d) ^ Math.imul(other + 0x9e3779b9, 0x85ebca6b)
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0x297a2d39)
  return (mixed ^ (mixed >>> 16)) >>> 0
}

/** The hidden state behind each token of a prompt, which depends on the tenant and on all tokens before. */
function states(tenant, tokens) {
  let last = mix(tenant, 99)
  return tokens.map(token => (last = mix(last, token + 1)))
}

/** Keys or values of some states, [layers, 1, tokens, dim]. */
function rows(of, part) {
  const data = new Float32Array(LAYERS * of.length * DIM)
  for (let layer = 0; layer < LAYERS; layer++)
    of.forEach((value, token) => {
      for (let place = 0; place < DIM; place++)
        data[(layer * of.length + token) * DIM + place] = mix(value, layer * 16 + place * 2 + part) / 2 ** 32
    })
  return { data, shape: [LAYERS, 1, of.length, DIM] }
}

function check(cache, sequence, all, from) {
  for (let layer = 0; layer < LAYERS; layer++)
    for (let position = from; position < all.length; position++) {
      const { key, value } = cache.readKv(sequence, layer, position)
      for (let place = 0; place < DIM; place++) {
        const [k, v] = [0, 1].map(part => Math.fround(mix(all[position], layer * 16 + place * 2 + part) / 2 ** 32))
        if (key[place] !== k || value[place] !== v)
          throw new Error(`layer ${layer}, position ${position}: another token's row`)
      }
    }
}

const path = mkdtempSync(join(tmpdir(), 'kvtide-soak-'))
process.on('exit', () => rmSync(path, { recursive: true, force: true }))
const cache = new PagedKvCache({
  capacity: 300,
  blockSize: BLOCK,
  numLayers: LAYERS,
  numKvHeads: 1,
  headDim: DIM,
  prefixKey: new Uint8Array(32).fill(7),
  namespace: 'soak',
  tiers: { disk: { path, limitBytes: 4e6 } },
})

/** Begins a conversation: a tenant, and a system prompt that its chats share. */
function conversation() {
  const tenant = below(TENANTS)
  return { tenant, tokens: Array.from({ length: 20 + (tenant % 3) * 8 }, (_, place) => (place * 7 + tenant) % 50) }
}

async function request(chat) {
  const salt = `tenant ${chat.tenant}`
  const asked = Array.from({ length: 1 + below(24) }, () => below(1000))
  chat.tokens = [...chat.tokens, ...asked]
  const all = states(chat.tenant, chat.tokens)
  const match = await cache.match(chat.tokens, { salt, tiers: 'all', deadline: 1000 })
  const stranger = cache.match(chat.tokens, { salt: `${salt}?` })
  if (stranger.length > 0) throw new Error('a prefix of another tenant')
  stranger.dispose()
  const sequence = cache.openSequence({ prefix: match })
  const missing = all.slice(sequence.length)
  const begun = sequence.length
  if (missing.length > 0)
    sequence.append({ tokens: chat.tokens.slice(begun), k: rows(missing, 0), v: rows(missing, 1) })
  for (let count = 1 + below(32); count > 0; count--) {
    const token = below(1000)
    chat.tokens.push(token)
    all.push(mix(all[all.length - 1], token + 1))
    const last = all.slice(-1)
    sequence.append({ tokens: [token], k: rows(last, 0), v: rows(last, 1) })
  }
  if (sequence.length !== all.length) throw new Error(`${sequence.length} tokens, expected ${all.length}`)
  check(cache, sequence, all, below(10) === 0 ? 0 : Math.max(0, all.length - BLOCK))
  sequence.drop()
  return begun
}

const chats = []
const rss = []
let [requests, hits] = [0, 0]
const start = performance.now()
for (let clock = 0; clock < hours * 3600; clock += below(2 * PAUSE)) {
  clock += 1
  if (chats.length < CHATS && below(5) === 0) chats.push(conversation())
  if (chats.length === 0) continue
  const place = below(chats.length)
  const chat = chats[place]
  // The user edits an earlier question.
  if (below(10) === 0) chat.tokens = chat.tokens.slice(0, 20 + below(chat.tokens.length - 19))
  if ((await request(chat)) > 0) hits += 1
  requests += 1
  if (chat.tokens.length > TOKENS_MAX || below(40) === 0) chats.splice(place, 1)
  if (requests % 100 === 0) await setImmediate()
  const hour = Math.floor(clock / 3600)
  if (rss[hour] === undefined) {
    globalThis.gc()
    await setImmediate()
    rss[hour] = process.memoryUsage().rss
    console.log(`hour ${hour}: ${requests} requests, ${Math.round(rss[hour] / 2 ** 20)} MiB`)
  }
}
await cache.flush()
cache.dispose()
const { usedBytes } = memoryStats()
const seconds = (performance.now() - start) / 1000
console.log(
  `${hours} hours: ${requests} requests, ${hits} with a cache hit, in ${seconds.toFixed(0)} s; ${usedBytes} native bytes in use`,
)
const grown = rss.length > 6 ? rss[rss.length - 1] - rss[Math.floor(rss.length / 4)] : 0
if (usedBytes !== 0 || hits === 0 || grown > 24 * 2 ** 20) {
  console.error(`${Math.round(grown / 2 ** 20)} MiB more, ${usedBytes} native bytes in use, ${hits} hits`)
  process.exit(1)
}
