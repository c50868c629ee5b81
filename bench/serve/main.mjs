// `npm run bench:serve -- --model FOLDER`: measures kvtide-serve, in rounds that alternate:
//
// - 16 clients that stream answers, against as many generations of the bare OnnxModel in one process: tokens a second;
// - with `--llama-server FILE --gguf FILE`, 16 clients that ask different questions behind one long system prompt, of kvtide-serve and of llama.cpp's server;
// - 500 connections at once: every stream must have the right text, and the server's memory must stay bounded.
//
// Clients run in a process of their own. Run npm run build:ts before.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'

import { TextModel } from 'kvtide/text'

const { values } = parseArgs({
  options: {
    model: { type: 'string' },
    dtype: { type: 'string' },
    rounds: { type: 'string', default: '3' },
    tokens: { type: 'string', default: '64' },
    threads: { type: 'string', default: '2' },
    words: { type: 'string', default: '100' },
    connections: { type: 'string', default: '500' },
    'llama-server': { type: 'string' },
    gguf: { type: 'string' },
    'system-words': { type: 'string', default: '1000' },
  },
})
if (values.model === undefined) throw new Error('--model is missing, expected the folder of a model')
const [rounds, most, threads, connections] = [values.rounds, values.tokens, values.threads, values.connections].map(
  Number,
)
const CLIENTS = 16
const SECONDS = 6

const wordsOf = count => Array.from({ length: count }, (_, at) => ['tide', 'shore', 'moon', 'boat'][at % 4]).join(' ')
const system = wordsOf(Number(values.words))
const messagesOf = (client, content = system) => [
  { role: 'system', content },
  { role: 'user', content: `Client ${client}: tell me about the sea.` },
]
const bodiesOf = (count, tokens, content = system) =>
  Array.from({ length: count }, (_, client) => ({
    messages: messagesOf(client, content),
    max_tokens: tokens,
    ignore_eos: true,
  }))

const median = numbers => numbers.toSorted((a, b) => a - b)[numbers.length >> 1]
const spread = (numbers, digits = 1) =>
  `${median(numbers).toFixed(digits)} (${Math.min(...numbers).toFixed(digits)} to ${Math.max(...numbers).toFixed(digits)})`

/** Starts kvtide-serve, and returns its address and its process. */
function started(...flags) {
  const dtype = values.dtype === undefined ? [] : ['--dtype', values.dtype]
  const own = ['packages/serve/bin/kvtide-serve.js', values.model, '--port', '0', '--threads', String(threads)]
  return running(process.execPath, [...own, ...dtype, ...flags], /on (http:\S+)\/v1/)
}

/** Starts llama.cpp's server with a context of 2,048 tokens for each client. */
function startedLlama() {
  const flags = { '-m': values.gguf, '-np': CLIENTS, '-c': CLIENTS * 2048, '-t': threads, '-tb': threads, '--port': 0 }
  return running(values['llama-server'], Object.entries(flags).flat().map(String), /listening on (http:\S+)/)
}

/** Starts a server that prints its address. */
async function running(command, parameters, pattern) {
  const child = spawn(command, parameters)
  // A measurement that fails leaves no server behind.
  process.once('exit', () => child.kill())
  const address = await new Promise((resolve, reject) => {
    let output = ''
    const read = part => {
      output += part
      const found = pattern.exec(output)?.[1]
      if (found !== undefined) resolve(found)
    }
    child.stdout.on('data', read)
    child.stderr.on('data', read)
    child.on('error', reject)
    child.on('exit', code => reject(new Error(`the server ended with ${code}: ${output.slice(-500)}`)))
  })
  const memory = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))[1]) / 1024
  /** Processor time in milliseconds, from ticks of 10 ms. */
  const cpuMs = () => {
    const fields = readFileSync(`/proc/${child.pid}/stat`, 'utf8').split(') ')[1].split(' ')
    return (Number(fields[11]) + Number(fields[12])) * 10
  }
  const stop = () => new Promise(resolve => child.once('exit', resolve) && child.kill('SIGTERM'))
  return { address, memory, cpuMs, stop }
}

/** Runs clients in a process of their own. */
function clients(asked, env = {}) {
  const child = spawn(process.execPath, ['bench/serve/clients.mjs'], { env: { ...process.env, ...env } })
  child.stdin.end(JSON.stringify(asked))
  let output = ''
  child.stdout.on('data', part => (output += part))
  child.stderr.pipe(process.stderr)
  return new Promise((resolve, reject) =>
    child.on('close', code =>
      code === 0 ? resolve(JSON.parse(output)) : reject(new Error(`clients ended with ${code}`)),
    ),
  )
}

/** Loads the bare model; `measure` generates as the clients do. */
async function bare() {
  const text = await TextModel.load(values.model, {
    threads,
    cache: { memoryBytes: 2 * 2 ** 30, maxSequences: 32 },
    ...(values.dtype === undefined ? {} : { dtype: values.dtype }),
  })
  const { model, tokenizer } = text
  const prompts = Array.from({ length: CLIENTS }, (_, client) =>
    tokenizer.encode(text.render({ messages: messagesOf(client) }), { addSpecialTokens: false }),
  )
  const generate = async client => {
    const sequence = model.open({ tokens: prompts[client] })
    let count = 0
    for await (const _ of model.generate(sequence, { maxTokens: most, temperature: 0, ignoreEndOfSequence: true }))
      count += 1
    sequence.dispose()
    return count
  }
  const measure = async seconds => {
    let tokens = 0
    const start = performance.now()
    const cpu = process.cpuUsage()
    await Promise.all(
      prompts.map(async (_, client) => {
        do {
          const count = await generate(client)
          tokens += count
        } while (performance.now() - start < seconds * 1000)
      }),
    )
    const { user, system: kernel } = process.cpuUsage(cpu)
    return { perSecond: tokens / ((performance.now() - start) / 1000), cpuMs: (user + kernel) / 1000 / tokens }
  }
  return { measure, dispose: () => text.dispose() }
}

/** Starts kvtide-serve; `measure` lets clients stream from it. */
async function served() {
  const server = await started('--memory', '2')
  const asked = { at: server.address, clients: CLIENTS, bodies: bodiesOf(CLIENTS, most) }
  const measure = async seconds => {
    const before = server.cpuMs()
    const measured = await clients({ ...asked, seconds })
    return { ...measured, cpuMs: (server.cpuMs() - before) / measured.tokens }
  }
  return { measure, stop: server.stop }
}

async function compare() {
  const [ratios, cpuRatios] = [[], []]
  const [own, server] = [await bare(), await served()]
  await own.measure(0)
  await server.measure(0)
  for (let round = 0; round < rounds; round++) {
    const { perSecond, cpuMs: ownCpu } = await own.measure(SECONDS)
    const { tokensPerSecond, firstMs, failures, cpuMs } = await server.measure(SECONDS)
    ratios.push(tokensPerSecond / perSecond)
    cpuRatios.push(ownCpu / cpuMs)
    console.log(
      `round ${round + 1}: OnnxModel ${perSecond.toFixed(1)} tokens/s, kvtide-serve ${tokensPerSecond.toFixed(1)} tokens/s, ratio ${ratios.at(-1).toFixed(3)}, first token p50 ${firstMs.p50.toFixed(0)} ms, p95 ${firstMs.p95.toFixed(0)} ms, ${failures} failures; processor time ${ownCpu.toFixed(2)} and ${cpuMs.toFixed(2)} ms per token`,
    )
  }
  console.log(
    `medians of ${rounds} rounds: ${spread(ratios, 3)} of the tokens per second, ${spread(cpuRatios, 3)} of the tokens per processor time`,
  )
  await own.dispose()
  await server.stop()
}

/** Measures a server whose clients share a long system prompt, each with a new question every time. */
async function shared(start) {
  const server = await start()
  const content = wordsOf(Number(values['system-words']))
  const bodies = bodiesOf(4096, most, content)
  await clients({ at: server.address, clients: CLIENTS, bodies: bodies.slice(-CLIENTS), seconds: 0 })
  const before = server.cpuMs()
  const measured = await clients({ at: server.address, clients: CLIENTS, bodies, seconds: SECONDS })
  const result = { ...measured, cpuMs: (server.cpuMs() - before) / measured.tokens, memory: server.memory() }
  await server.stop()
  return result
}

async function compareServers() {
  const rows = { 'kvtide-serve': [], 'llama-server': [] }
  for (let round = 0; round < rounds; round++) {
    rows['kvtide-serve'].push(await shared(() => started('--memory', '2')))
    rows['llama-server'].push(await shared(startedLlama))
  }
  for (const [name, all] of Object.entries(rows)) {
    const of = read => all.map(read)
    console.log(
      `${name}: ${spread(of(one => one.tokensPerSecond))} tokens/s, first token p50 ${spread(of(one => one.firstMs.p50))} ms, p95 ${spread(of(one => one.firstMs.p95))} ms, ${median(of(one => one.cpuMs)).toFixed(2)} ms of processor time per token, ${median(of(one => one.memory)).toFixed(0)} MiB, ${of(one => one.failures)} failures, ${JSON.stringify(all[0].statuses)}`,
    )
  }
}

async function crowd() {
  const server = await started('--memory', '1', '--max-waiting', '1000')
  const bodies = bodiesOf(CLIENTS, 8)
  const alone = await clients({ at: server.address, clients: CLIENTS, seconds: 0, bodies }, { KVTIDE_SHOW_TEXTS: '1' })
  const texts = Object.fromEntries(alone.texts)
  const before = server.memory()
  let peak = before
  const timer = setInterval(() => (peak = Math.max(peak, server.memory())), 100)
  const measured = await clients({ at: server.address, clients: connections, seconds: 20, bodies, texts })
  clearInterval(timer)
  console.log(
    `${connections} connections: ${measured.answers} answers, ${measured.wrong} wrong, ${measured.failures} failures, ${JSON.stringify(measured.statuses)}, ${measured.tokensPerSecond.toFixed(1)} tokens/s; memory ${before.toFixed(0)} MiB before, at most ${peak.toFixed(0)} MiB`,
  )
  await server.stop()
  const full = await started('--memory', '1', '--max-waiting', '16')
  const refused = await clients({ at: full.address, clients: connections, seconds: 5, bodies, texts })
  console.log(
    `the same with --max-waiting 16: ${refused.answers} answers, ${refused.wrong} wrong, ${refused.failures} failures, ${JSON.stringify(refused.statuses)}; memory ${full.memory().toFixed(0)} MiB`,
  )
  await full.stop()
}

if (rounds > 0 && values['llama-server'] !== undefined) await compareServers()
else if (rounds > 0) await compare()
if (connections > 0) await crowd()
