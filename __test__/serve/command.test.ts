// The command line: flags, the terminal chat, and a server process that drains.
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
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
    [['router', '--worker', 'http://x:1', '--port', '-1'], 2, /--port needs a value/],
    [['model', '--memory', '-1'], 2, /--memory needs a value, got "-1": write --memory=-1/],
    [['model', '--memory=-1'], 2, /--memory must be a number of at least 0.001, got "-1"/],
    [['chta', 'model'], 2, /there is no command chta, did you mean chat\?/],
    [['dmeo'], 2, /there is no command dmeo, did you mean demo\?/],
    [['model', '--port', 'x'], 2, /--port must be a whole number of at least 0, got "x"/],
    [['one', 'two'], 2, /expected one model/],
    [['router'], 2, /--worker/],
    [['router', '--worker', 'ftp://x'], 2, /http:\/\/host:port/],
    [['model', '--redis', 'redis://127.0.0.1:1'], 2, /KVTIDE_PREFIX_KEY/],
    [['model', '--events', 'x'], 2, /tcp:\/\/host:port/],
    [['/nowhere/model'], 1, /nowhere/],
  ] as const) {
    const started = run(t, args, { KVTIDE_PREFIX_KEY: '' })
    t.is(await started.ended, code, `${args.join(' ')}: ${started.output()}`)
    t.regex(started.output(), expected)
    t.notRegex(started.output(), /\n {4}at /)
    if (code !== 0) t.true(started.output().length < 400, started.output())
  }
})

test('a server process: keys, a disk, and draining by SIGTERM', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-command-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const keys = join(folder, 'keys')
  writeFileSync(keys, 'team canary-key\n')
  const disk = join(folder, 'disk')
  const cached: number[] = []
  const model = modelFolder()
  for (let time = 0; time < 2; time++) {
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
  }
  t.deepEqual([cached[0], (cached[1] ?? 0) > 100], [0, true], 'the prompt was kept on disk')
  t.regex(readFileSync(join(disk, 'prefix-key'), 'utf8'), /^[\da-f]{64}$/)
  t.is(statSync(join(disk, 'prefix-key')).mode & 0o777, 0o600)
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
