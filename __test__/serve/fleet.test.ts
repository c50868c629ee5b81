// Processes as the compose file starts them: two workers with Redis and events, behind a router.
import { type ChildProcess, spawn } from 'node:child_process'

import type { ExecutionContext } from 'ava'

import { Redis, withRedis } from '../support/redis.js'
import type { Answer } from '../support/serve/client.js'
import { modelFolder } from '../support/serve/model-folder.js'
import { until } from '../support/until.js'

const env = { ...process.env, KVTIDE_PREFIX_KEY: '7'.repeat(64), KVTIDE_SERVE_KEYS: 'one,two' }

async function started(
  t: ExecutionContext,
  args: readonly string[],
): Promise<{ readonly at: string; readonly child: ChildProcess }> {
  const child = spawn(process.execPath, ['packages/serve/bin/kvtide-serve.js', ...args, '--port', '0'], { env })
  t.teardown(() => child.kill('SIGKILL'))
  let output = ''
  child.stdout.on('data', part => (output += String(part)))
  child.stderr.on('data', part => (output += String(part)))
  t.true(await until(() => / on http:\S+\/v1$/m.test(output) || child.exitCode !== null), output)
  return { at: /on (http:\S+)\/v1/.exec(output)?.[1] ?? t.fail(output), child }
}

async function cached(t: ExecutionContext, at: string, content: string, key: string): Promise<number> {
  const response = await fetch(`${at}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify({ messages: [{ role: 'user', content }], max_tokens: 1, temperature: 0 }),
  })
  t.is(response.status, 200)
  return ((await response.json()) as Answer).usage.prompt_tokens_details.cached_tokens
}

withRedis('a prompt that one worker has computed is a hit in the other, and behind the router', async t => {
  const redis = await Redis.start()
  t.teardown(() => redis.stop())
  const model = modelFolder()
  const flags = ['--memory', '0.05', '--threads', '1', '--name', 'tiny', '--redis', redis.url]
  const worker = () => started(t, [model, ...flags, '--events', 'tcp://127.0.0.1:0'])
  const [one, two] = [await worker(), await worker()]
  const router = await started(t, ['router', '--worker', one.at, '--worker', two.at])
  const content = 'a prompt of all '.repeat(20)
  t.is(await cached(t, one.at, content, 'one'), 0)
  t.true(await until(async () => (await cached(t, two.at, content, 'one')) > 200, 100), 'restored from Redis')
  t.is(await cached(t, two.at, content, 'two'), 0)
  t.true((await cached(t, router.at, content, 'one')) > 200)
  // A worker that drains loses its requests to the other one.
  one.child.kill('SIGTERM')
  t.true(await until(() => one.child.exitCode === 0))
  t.true((await cached(t, router.at, content, 'one')) > 200)
  router.child.kill('SIGTERM')
  t.true(await until(() => router.child.exitCode === 0))
})
