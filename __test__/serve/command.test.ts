// The command line: flags, the terminal chat, and a server process that drains.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'

import test, { type ExecutionContext } from 'ava'

import { TerminalChat, usageLine } from '../../packages/serve/lib/command/chat.js'
import { modelFolder } from '../support/serve/model-folder.js'
import { said, ScriptedModel } from '../support/serve/scripted-model.js'
import { until } from '../support/until.js'

const BIN = 'packages/serve/bin/kvtide-serve.js'

interface Process {
  readonly output: () => string
  readonly ended: Promise<number | null>
  signal(name: NodeJS.Signals): void
}

function run(t: ExecutionContext, args: readonly string[], env: NodeJS.ProcessEnv = {}, input?: string): Process {
  const child = spawn(process.execPath, [BIN, ...args], { env: { ...process.env, ...env } })
  t.teardown(() => child.kill('SIGKILL'))
  let output = ''
  child.stdout.on('data', part => (output += String(part)))
  child.stderr.on('data', part => (output += String(part)))
  if (input !== undefined) child.stdin.end(input)
  const ended = new Promise<number | null>(resolve => child.on('close', resolve))
  return { output: () => output, ended, signal: name => void child.kill(name) }
}

const SMALL = ['--memory', '0.05', '--threads', '1']

test('help, version and wrong arguments', async t => {
  for (const [args, code, expected] of [
    [[], 0, /kvtide-serve router/],
    [['help'], 0, /--max-waiting/],
    [['chat', '--help'], 0, /\/reset/],
    [['router', '--help'], 0, /--worker/],
    [['--version'], 0, /^\d+\.\d+\.\d+/],
    [['model', '--no-such-flag'], 2, /unknown option --no-such-flag\n[\s\S]*--help/],
    [['model', '--prot', '8080'], 2, /unknown option --prot, did you mean --port\?/],
    [['chat', 'model', '--temprature=1'], 2, /unknown option --temprature, did you mean --temperature\?/],
    [['model', '-p', '8080'], 2, /unknown option -p\n/],
    [['model', '--port'], 2, /--port needs a value/],
    [['model', '--log=yes'], 2, /--log takes no value/],
    [['model', '--port', 'x'], 2, /--port must be a whole number from 0 to 65535, got "x"/],
    [['model', '--port', '99999'], 2, /--port must be a whole number from 0 to 65535, got "99999"/],
    [['demo', '--port', '99999'], 2, /^kvtide-serve: --port must be/],
    [['router', '--worker', 'http://x:1', '--port', '-1'], 2, /--port needs a value/],
    [['model', '--memory', '-1'], 2, /--memory needs a value, got "-1": write --memory=-1/],
    [['model', '--memory=-1'], 2, /--memory must be a number of at least 0.001, got "-1"/],
    [['chta', 'model'], 2, /there is no command chta, did you mean chat\?/],
    [['dmeo'], 2, /there is no command dmeo, did you mean demo\?/],
    [['model', '--accuracy-level', '3'], 2, /--accuracy-level must be 0 or 4, got "3"/],
    [['model', '--keys', 'nofile'], 2, /--keys must be a file that can be read, got "nofile": there is no such file/],
    [['model', '--keys', '.'], 2, /--keys must be a file that can be read, got ".": it is a folder/],
    [['model', '--public-prompt', 'nofile'], 2, /--public-prompt must be a file/],
    [['model', '--template', 'nofile'], 2, /--template must be a file/],
    [['model', '--disk', 'package.json'], 2, /--disk must be a folder, got "package.json": it is a file/],
    [['model', '--disk', 'package.json/x'], 2, /--disk must be a folder, .*: a part of the path is a file/],
    [['one', 'two'], 2, /expected one model/],
    [['router'], 2, /--worker/],
    [['router', '--worker', 'ftp://x'], 2, /http:\/\/host:port/],
    [
      ['router', '--worker', 'http://x:1', '--worker', 'https://user:canary-password@host'],
      2,
      /^kvtide-serve: --worker must be http:\/\/host:port: worker 2 of 2 is not\n/,
    ],
    [['model', '--redis', 'redis://127.0.0.1:1'], 2, /KVTIDE_PREFIX_KEY/],
    [['model', '--events', 'x'], 2, /tcp:\/\/host:port/],
    [['/nowhere/model'], 1, /nowhere/],
  ] as const) {
    const started = run(t, args, { KVTIDE_PREFIX_KEY: '' })
    t.is(await started.ended, code, `${args.join(' ')}: ${started.output()}`)
    t.regex(started.output(), expected)
    t.notRegex(started.output(), /\n {4}at |canary/)
    if (code !== 0) t.true(started.output().length < 400, started.output())
  }
})

/** A folder that is removed after the test. */
function scratch(t: ExecutionContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-command-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

test('a server without any key in its list of keys does not start', async t => {
  const file = join(scratch(t), 'keys')
  for (const [text, list, expected] of [
    ['# none yet\n\n', undefined, /--keys has no keys, expected at least one/],
    [undefined, '', /KVTIDE_SERVE_KEYS has no keys, expected at least one/],
    ['key\n', ',', /KVTIDE_SERVE_KEYS has no keys/],
    ['a b c\n', undefined, /--keys: line 1 of the keys is not KEY or NAME KEY/],
  ] as const) {
    if (text !== undefined) writeFileSync(file, text)
    const args = ['/nowhere/model', ...(text === undefined ? [] : ['--keys', file])]
    const started = run(t, args, list === undefined ? {} : { KVTIDE_SERVE_KEYS: list })
    t.is(await started.ended, 2, started.output())
    t.regex(started.output(), expected)
  }
})

test('a port in use is named, with the option that chooses another one', async t => {
  const other = createServer()
  t.teardown(() => other.close())
  await once(other.listen(0, '127.0.0.1'), 'listening')
  const { port } = other.address() as AddressInfo
  const started = run(t, ['router', '--worker', 'http://127.0.0.1:1', '--port', String(port)])
  t.is(await started.ended, 1, started.output())
  t.is(
    started.output(),
    `kvtide-serve: port ${port} of 127.0.0.1 is in use: --port N chooses another one, 0 any free one\n`,
  )
})

test('a server process: keys, a disk, and draining by SIGTERM', async t => {
  const folder = scratch(t)
  const keys = join(folder, 'keys')
  writeFileSync(keys, 'team canary-key\n')
  const disk = join(folder, 'disk')
  const cached: number[] = []
  const warnings: boolean[] = []
  const model = modelFolder()
  for (const isKeyGone of [false, false, true]) {
    if (isKeyGone) rmSync(join(disk, 'prefix-key'))
    const server = run(t, [model, ...SMALL, '--port', '0', '--name', 'tiny', '--keys', keys, '--disk', disk, '--log'])
    t.true(await until(() => /^tiny \(graph\) on http:\S+\/v1$/m.test(server.output())), server.output())
    const at = /on (http:\S+)\/v1/.exec(server.output())?.[1] ?? ''
    const response = await fetch(`${at}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: 'Bearer canary-key' },
      body: JSON.stringify({ messages: [{ role: 'user', content: 'canary prompt '.repeat(10) }], max_tokens: 4 }),
    })
    t.is(response.status, 200)
    cached.push(
      ((await response.json()) as { usage: { prompt_tokens_details: { cached_tokens: number } } }).usage
        .prompt_tokens_details.cached_tokens,
    )
    server.signal('SIGTERM')
    t.is(await server.ended, 0, server.output())
    t.notRegex(server.output(), /canary/)
    warnings.push(
      /^warning: .*disk has blocks but no file prefix-key: blocks of the old key cannot be used/m.test(server.output()),
    )
  }
  t.deepEqual([cached[0], (cached[1] ?? 0) > 100, cached[2]], [0, true, 0], 'the prompt was kept on disk')
  t.deepEqual(warnings, [false, false, true], 'only a lost key is worth a warning')
  t.regex(readFileSync(join(disk, 'prefix-key'), 'utf8'), /^[\da-f]{64}$/)
  t.is(statSync(join(disk, 'prefix-key')).mode & 0o777, 0o600)
})

test('a signal with requests still running says so, and a second one ends the process', async t => {
  const server = run(t, [modelFolder(), ...SMALL, '--port', '0'])
  t.true(await until(() => /on http:\S+\/v1$/m.test(server.output())), server.output())
  const at = /on (http:\S+)\/v1/.exec(server.output())?.[1] ?? ''
  const body = { messages: [{ role: 'user', content: 'hello' }], ignore_eos: true, stream: true, n: 8 }
  const response = await fetch(`${at}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  t.is(response.status, 200)
  server.signal('SIGINT')
  t.true(await until(() => server.output().endsWith('1 request is still running: Ctrl-C again ends it now\n')))
  server.signal('SIGINT')
  t.is(await server.ended, 1, server.output())
  await t.throwsAsync(response.text())
})

test('a chat with a model that has no chat template does not start', async t => {
  const folder = modelFolder()
  const config = JSON.parse(readFileSync(join(folder, 'tokenizer_config.json'), 'utf8')) as object
  writeFileSync(join(folder, 'tokenizer_config.json'), JSON.stringify({ ...config, chat_template: undefined }))
  const chat = run(t, ['chat', folder, ...SMALL], {}, 'hello\n')
  t.is(await chat.ended, 1, chat.output())
  t.regex(chat.output(), /^kvtide-serve: kvtide-text-\S+ has no chat template.* --template FILE/)
  const template = join(folder, 'own.jinja')
  writeFileSync(template, '{% for message in messages %}{{ message.content }}{% endfor %}')
  const own = run(t, ['chat', folder, ...SMALL, '--template', template, '--max-tokens', '3'], {}, 'hello\n')
  t.is(await own.ended, 0, own.output())
  t.regex(own.output(), /3 tokens/)
})

test('a chat process answers the lines of its input', async t => {
  const chat = run(
    t,
    ['chat', modelFolder(), ...SMALL, '--max-tokens', '5'],
    {},
    'hello\n/reset\n/nothing\nagain\n/exit\nnever\n',
  )
  t.is(await chat.ended, 0, chat.output())
  t.is(
    chat.output().match(/\[\d+ prompt tokens, \d+ of them cached, first after [\d.]+ s; 5 tokens/g)?.length,
    2,
    chat.output(),
  )
  t.regex(chat.output(), /\(a new chat\)\nunknown command \/nothing/)
})

/** A chat with a scripted model. */
function terminal(model: ScriptedModel, settings: ConstructorParameters<typeof TerminalChat>[2] = {}) {
  const [input, output] = [new PassThrough(), new PassThrough()]
  let written = ''
  output.on('data', part => (written += String(part)))
  const interrupts: (() => void)[] = []
  const chat = new TerminalChat(
    model.asModel,
    { input, output, onInterrupt: call => void interrupts.push(call) },
    settings,
  )
  return { input, written: () => written, interrupt: () => interrupts.forEach(call => call()), ended: chat.run() }
}

test('a terminal chat keeps its messages, and forgets them', async t => {
  const model = new ScriptedModel((_, call) => [said(`answer ${call}`)])
  const { input, written, ended } = terminal(model, { system: 'Be brief', temperature: 0.5, maxTokens: 9 })
  for (const line of ['one', 'two', '/reset', 'three', '/system Be kind', 'four']) input.write(`${line}\n`)
  input.end()
  await ended
  t.deepEqual(
    model.asked.map(({ messages }) => messages?.map(({ content }) => content)),
    [
      ['Be brief', 'one'],
      ['Be brief', 'one', 'answer 0', 'two'],
      ['Be brief', 'three'],
      ['Be kind', 'four'],
    ],
  )
  t.like(model.asked[0], { temperature: 0.5, maxTokens: 9 })
  t.regex(written(), /answer 0\n\[/)
})

test('Ctrl-C ends an answer and not the program; at an empty prompt it ends the program', async t => {
  const model = new ScriptedModel(async function* (_, call) {
    yield said('begun')
    if (call === 0) await new Promise(() => {})
  })
  const { input, written, interrupt, ended } = terminal(model)
  input.write('one\n')
  t.true(await until(() => written().includes('begun')))
  interrupt()
  t.true(await until(() => written().includes('(interrupted)')))
  t.is(model.running, 0)
  input.write('two\n')
  t.true(await until(() => model.asked.length === 2 && written().endsWith('tokens/s]\n')))
  t.deepEqual(
    model.asked[1]?.messages?.map(({ content }) => content),
    ['one', 'begun', 'two'],
  )
  interrupt()
  await ended
  t.pass()
})

test('the line about the work of an answer', t => {
  const usage = {
    promptTokens: 412,
    cachedTokens: 400,
    computedTokens: 12,
    generatedTokens: 35,
    draftedTokens: 0,
    acceptedTokens: 0,
    firstTokenMs: 123,
    tokensPerSecond: 42.25,
  }
  t.is(usageLine(usage), '[412 prompt tokens, 400 of them cached, first after 0.12 s; 35 tokens, 42.3 tokens/s]')
})
