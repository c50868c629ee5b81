// Tests the chat server of examples/ as a user would: OpenAI's client and a load generator, from the registry, against a separate process.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { main, Refusal } from './refusal.mjs'
import { root, run, temporary } from './steps.mjs'

const MODEL = '__test__/fixtures/llama/onnx/model.onnx'

const CLIENT = `
import assert from 'node:assert/strict'
import OpenAI from 'openai'
const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'tenant' })
const asked = { model: 'tiny', messages: [{ role: 'user', content: 'What is a cache?' }], max_tokens: 12, temperature: 0 }
const { choices: [{ message, finish_reason }], usage } = await client.chat.completions.create(asked)
assert.deepEqual([finish_reason, usage.completion_tokens], ['length', 12])
let text = ''
for await (const { choices } of await client.chat.completions.create({ ...asked, stream: true })) text += choices[0]?.delta.content ?? ''
assert.equal(text, message.content)
await assert.rejects(client.chat.completions.create({ ...asked, temperature: 9 }), { status: 400, param: 'temperature' })
await assert.rejects(client.chat.completions.create({ ...asked, top_p: 0, stream: true }), { status: 400, param: 'top_p' })
await assert.rejects(client.chat.completions.create({ ...asked, max_tokens: 10_000_000 }), { status: 400, param: 'max_tokens', code: 'context_length_exceeded' })
assert.equal((await client.chat.completions.create({ ...asked, n: 3 })).choices.length, 3)
assert.deepEqual((await client.models.list()).data.map(({ id }) => id), ['tiny'])
`

async function tried() {
  const folder = temporary('server')
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
  writeFileSync(join(folder, 'client.mjs'), CLIENT)
  const installed = await run(
    'npm',
    ['install', '--silent', '--no-fund', '--no-audit', 'openai@7.57.0', 'autocannon@9.0.0'],
    { cwd: folder },
  )
  if (installed.code !== 0) throw new Refusal('openai and autocannon could not be installed')
  const server = spawn(
    process.execPath,
    [
      '--import=tsx',
      'examples/server/main.ts',
      '--model',
      MODEL,
      '--tokenizer',
      'bytes',
      '--name',
      'tiny',
      '--memory',
      '0.25',
      '--port',
      '0',
    ],
    { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] },
  )
  try {
    const [line] = await Promise.race([
      once(server.stdout, 'data'),
      once(server, 'exit').then(([code]) => {
        throw new Refusal(`the server ended with ${code}`)
      }),
    ])
    const at = /http:\S+:\d+/.exec(line.toString())?.[0]
    const client = await run(process.execPath, ['client.mjs', at], { cwd: folder })
    if (client.code !== 0) throw new Refusal('the client test failed')
    const body = JSON.stringify({
      messages: [{ role: 'user', content: 'Some words.' }],
      max_tokens: 32,
      temperature: 0,
    })
    const load = await run(
      process.execPath,
      [
        'node_modules/autocannon/autocannon.js',
        '--json',
        '-c',
        '16',
        '-d',
        '10',
        '-m',
        'POST',
        '-b',
        body,
        `${at}/v1/chat/completions`,
      ],
      { cwd: folder, silent: true },
    )
    const { requests, errors, non2xx, latency } = JSON.parse(load.output.slice(load.output.indexOf('{')))
    console.log(`${requests.average} requests per second from 16 clients, p50 ${latency.p50} ms, p99 ${latency.p99} ms`)
    if (errors + non2xx > 0 || requests.total === 0)
      throw new Refusal(`${errors} errors and ${non2xx} responses without a 2xx status, of ${requests.total} requests`)
  } finally {
    server.kill()
  }
}

await main(import.meta.url, 'chat server test failed', tried)
