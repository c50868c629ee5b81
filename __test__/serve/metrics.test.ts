// Metrics in Prometheus' format, and no key, prompt or answer in metrics, logs or errors.
import { spawn } from 'node:child_process'

import test, { type ExecutionContext } from 'ava'

import { Histogram } from '../../packages/serve/lib/metrics/prometheus.js'
import { Client, MESSAGES } from '../support/serve/client.js'
import { said, ScriptedModel } from '../support/serve/scripted-model.js'

/** Parses the text format, and refuses what Prometheus would refuse. */
function parsed(text: string): Map<string, number> {
  const types = new Map<string, string>()
  const samples = new Map<string, number>()
  if (!text.endsWith('\n')) throw new Error('the text does not end with a new line')
  for (const line of text.split('\n').filter(each => each !== '')) {
    const [, name, type] = /^# TYPE (\S+) (gauge|counter|histogram)$/.exec(line) ?? []
    if (name !== undefined && type !== undefined) {
      if (types.has(name)) throw new Error(`${name} is declared twice`)
      types.set(name, type)
    }
    if (line.startsWith('#')) continue
    const [, key = '', value = ''] = /^([a-zA-Z_:][\w:]*(?:\{(?:\w+="(?:[^"\\]|\\.)*",?)*\})?) (\S+)$/.exec(line) ?? []
    if (key === '' || Number.isNaN(Number(value.replace('+Inf', 'Infinity')))) throw new Error(`no sample: ${line}`)
    const metric = key.replace(/\{.*$/, '')
    if (!types.has(metric) && !types.has(metric.replace(/_(bucket|sum|count)$/, '')))
      throw new Error(`${metric} has no type`)
    if (samples.has(key)) throw new Error(`${key} is there twice`)
    samples.set(key, Number(value.replace('+Inf', 'Infinity')))
  }
  return samples
}

test('a histogram counts each value in its bucket and all above', t => {
  const histogram = new Histogram([1, 2, 5])
  for (const value of [0.5, 1, 1.5, 5, 9]) histogram.add(value)
  histogram.add(2, 3)
  const samples = parsed(`${histogram.text('h', 'x', { a: 'b"\\' })}\n`)
  t.deepEqual([...samples.values()], [2, 6, 7, 8, 23, 8])
  t.true(samples.has(String.raw`h_bucket{a="b\"\\",le="+Inf"}`))
})

test('the names that scrapers know have right numbers', async t => {
  const client = await Client.of(t, { name: 'tiny' })
  for (const body of [{}, { max_tokens: 1 }]) await client.asked(body)
  await client.streamed({})
  const samples = parsed(await client.text('/metrics'))
  const of = (name: string, more = ''): number | undefined => samples.get(`vllm:${name}{model_name="tiny"${more}}`)
  const prompt = 'user: What is a cache?\n'.length
  t.deepEqual(
    [
      of('num_requests_running'),
      of('num_requests_waiting'),
      of('kv_cache_usage_perc'),
      of('prefix_cache_queries_total'),
      of('prefix_cache_hits_total'),
      of('generation_tokens_total'),
      of('time_to_first_token_seconds_count'),
      of('inter_token_latency_seconds_count'),
      of('e2e_request_latency_seconds_count'),
      of('request_success_total', ',finished_reason="stop"'),
      of('request_success_total', ',finished_reason="length"'),
      of('request_success_total', ',finished_reason="abort"'),
    ],
    [0, 0, 0, 3 * prompt, 0, 5, 3, 2, 3, 2, 1, 0],
  )
  t.true(samples.has('kvtide_blocks{cache="tiny",group="0",state="free"}'))
  t.true(samples.has('kvtide_serve_streams{model_name="tiny"}'))
})

const KEY = 'canary-key-5f2a'
const PROMPT = 'canary prompt'
const ANSWER = 'canary answer'

test('no key, prompt or answer is in metrics, errors or headers', async t => {
  const model = new ScriptedModel(() => [said(ANSWER)])
  const client = await Client.of(t, { keys: [{ key: KEY }, { name: 'named', key: `${KEY}-2` }] }, model)
  const seen: string[] = []
  const messages = [{ role: 'user', content: PROMPT }]
  for (const [key, body] of [
    [KEY, { messages }],
    [`${KEY}-2`, { messages, stream: true }],
    [KEY, { messages, temperature: 9 }],
    [`${KEY}-wrong`, { messages }],
    [`${KEY} ${KEY}`, { messages }],
  ] as const) {
    const response = await client.post(body, { key })
    const text = await response.text()
    seen.push(JSON.stringify([...response.headers]))
    if (!response.ok) seen.push(text)
  }
  for (const path of ['/metrics', '/health', '/worker', `/v1/nothing?key=${KEY}`, '/v1/models'])
    seen.push(await client.text(path))
  for (const text of seen)
    t.false(
      [KEY, PROMPT, ANSWER].some(canary => text.includes(canary)),
      text,
    )
})

/** Runs a program to its end, and returns what it printed. */
async function printed(t: ExecutionContext, program: string): Promise<{ output: string; errors: string }> {
  const child = spawn(process.execPath, ['--import=tsx', '--input-type=module', '-e', program])
  let [output, errors] = ['', '']
  child.stdout.on('data', part => (output += String(part)))
  child.stderr.on('data', part => (errors += String(part)))
  t.is(await new Promise(resolve => child.on('close', resolve)), 0, errors)
  return { output, errors }
}

interface LogLine {
  readonly msg: string
  readonly status?: number
  readonly path?: string
  readonly ms?: number
}

const linesOf = (output: string): LogLine[] =>
  output
    .trim()
    .split('\n')
    .map(line => JSON.parse(line) as LogLine)

const requestsOf = (lines: readonly LogLine[]): string[] =>
  lines.filter(({ msg }) => msg === 'request').map(({ status, path }) => `${status} ${path}`)

test('no key, prompt or answer is in logs, and each request has one line', async t => {
  const program = `
    import { Client } from './__test__/support/serve/client.ts'
    import { ScriptedModel, said } from './__test__/support/serve/scripted-model.ts'
    let calls = 0
    const model = new ScriptedModel(() => { if (calls++ === 2) throw new Error('broken'); return [said('${ANSWER}')] })
    const client = await Client.start({ isLogging: true, keys: [{ key: '${KEY}' }] }, model)
    const messages = [{ role: 'user', content: '${PROMPT}' }]
    for (const [key, body] of [['${KEY}', { messages }], ['${KEY}', { messages, stream: true }], ['${KEY}', { messages }], ['${KEY}-wrong', { messages }], ['${KEY}', { messages, n: 0 }]])
      await (await client.post(body, { key, path: '/v1/chat/completions?key=${KEY}' })).text()
    await client.text('/health?key=${KEY}')
    await client.server.close()`
  const { output, errors } = await printed(t, program)
  for (const canary of [KEY, PROMPT, ANSWER]) t.false((output + errors).includes(canary), output)
  const lines = linesOf(output)
  t.deepEqual(requestsOf(lines), [
    '200 /v1/chat/completions',
    '200 /v1/chat/completions',
    '500 /v1/chat/completions',
    '401 /v1/chat/completions',
    '400 /v1/chat/completions',
    '200 /health',
  ])
  t.is(lines.filter(({ msg }) => msg === 'failed').length, 1)
  t.is(MESSAGES.length, 1)
})

test('a request whose client has left has one line of log too, and so has a path that cannot be decoded', async t => {
  const { output } = await printed(
    t,
    `
    import { once } from 'node:events'
    import { connect } from 'node:net'
    import { Client, MESSAGES } from './__test__/support/serve/client.ts'
    import { ScriptedModel, said } from './__test__/support/serve/scripted-model.ts'
    import { until } from './__test__/support/until.ts'
    let calls = 0
    const model = new ScriptedModel(async function* () {
      calls += 1
      yield said('begun')
      await new Promise(() => {})
    })
    const client = await Client.start({ isLogging: true, maxRunning: 2 }, model)
    for (const stream of [false, true]) {
      const abort = new AbortController()
      const answer = client.post({ messages: MESSAGES, stream }, { signal: abort.signal }).catch(() => {})
      if (stream) await answer
      await until(() => calls === (stream ? 2 : 1))
      abort.abort()
      await until(() => client.server.active === 0)
    }
    const socket = connect(client.port, '127.0.0.1')
    socket.write('POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\nContent-Length: 9\\r\\n\\r\\n{')
    const [, response] = await once(client.server.app.server, 'request')
    socket.destroy()
    await once(response, 'close')
    await client.raw('GET', '/v1/models/%')
    await client.server.close()`,
  )
  const lines = linesOf(output)
  t.deepEqual(requestsOf(lines), [
    '499 /v1/chat/completions',
    '499 /v1/chat/completions',
    '499 /v1/completions',
    '400 /v1/models/%',
  ])
  t.true(lines.filter(({ msg }) => msg === 'request').every(({ ms }) => Number.isInteger(ms)))
})
