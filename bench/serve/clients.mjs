// Clients of an OpenAI server: streams over plain HTTP, read as fast as they come. They run in a process of their own, read a JSON of what to do
// from their standard input, and print what they measured as JSON.
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'

const { at, clients, seconds, bodies, texts } = JSON.parse(readFileSync(0, 'utf8'))
const agent = new Agent({ keepAlive: true, maxSockets: Infinity })
const { hostname, port } = new URL(at)

/** Sends a request, and returns its status, its text, its tokens and the time of its first token in milliseconds. */
function ask(body) {
  return new Promise((resolve, reject) => {
    const start = performance.now()
    const text = JSON.stringify({ stream: true, stream_options: { include_usage: true }, temperature: 0, ...body })
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }
    const sent = request({ hostname, port, path: '/v1/chat/completions', method: 'POST', headers, agent }, response => {
      let [read, first] = ['', undefined]
      response.setEncoding('utf8')
      response.on('data', part => {
        read += part
        // The first chunk may have a role only.
        if (first === undefined && /"content":\s*"[^"]/.test(read)) first = performance.now() - start
      })
      response.on('end', () => resolve({ status: response.statusCode, first, ...parsed(read) }))
      response.on('error', reject)
    })
    sent.on('error', reject)
    sent.end(text)
  })
}

function parsed(read) {
  let [text, tokens, isDone] = ['', 0, false]
  for (const line of read.split('\n')) {
    if (line === 'data: [DONE]') isDone = true
    if (!line.startsWith('data: {')) continue
    const { choices = [], usage } = JSON.parse(line.slice(6))
    for (const { delta } of choices) text += delta.content ?? ''
    if (usage) tokens = usage.completion_tokens
  }
  return { text, tokens, isDone }
}

const answers = []
const failures = []
const end = performance.now() + seconds * 1000
const start = performance.now()
await Promise.all(
  Array.from({ length: clients }, async (_, client) => {
    for (let round = 0; round === 0 || performance.now() < end; round++) {
      const body = bodies[(client + round * clients) % bodies.length]
      try {
        answers.push({ at: bodies.indexOf(body), ...(await ask(body)) })
      } catch (error) {
        failures.push(String(error.message))
      }
    }
  }),
)
const took = (performance.now() - start) / 1000
const good = answers.filter(({ status, isDone }) => status === 200 && isDone)
const firsts = good
  .map(({ first }) => first)
  .filter(first => first !== undefined)
  .sort((a, b) => a - b)
const statuses = {}
for (const { status } of answers) statuses[status] = (statuses[status] ?? 0) + 1
console.log(
  JSON.stringify({
    tokensPerSecond: good.reduce((sum, { tokens }) => sum + tokens, 0) / took,
    tokens: good.reduce((sum, { tokens }) => sum + tokens, 0),
    answers: good.length,
    statuses,
    failures: failures.length,
    wrong: texts === undefined ? undefined : good.filter(answer => texts[answer.at] !== answer.text).length,
    firstMs: { p50: firsts[firsts.length >> 1], p95: firsts[Math.floor(firsts.length * 0.95)] },
    ...(process.env.KVTIDE_SHOW_TEXTS === undefined ? {} : { texts: good.map(({ at: place, text }) => [place, text]) }),
  }),
)
agent.destroy()
