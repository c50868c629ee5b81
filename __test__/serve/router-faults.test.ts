// A router with clients that leave early and workers that hang: no load stays, and no request waits for ever.
import { createServer, IncomingMessage, type RequestListener, ServerResponse } from 'node:http'
import { type AddressInfo, Socket } from 'node:net'

import test, { type ExecutionContext } from 'ava'

import { createRouter, type RouterServer } from '../../packages/serve/index.js'
import { Proxy } from '../../packages/serve/lib/router/proxy.js'
import { MESSAGES } from '../support/serve/client.js'
import { until } from '../support/until.js'

/** A worker whose answers a test writes. */
class FakeWorker {
  /** The paths of all requests besides health checks. */
  readonly asked: string[] = []
  /** The number of answers that have begun and not ended. */
  open = 0
  /** True to give no answer to a health check. */
  isSilent = false
  readonly at: string

  private constructor(at: string) {
    this.at = at
  }

  static async of(t: ExecutionContext, answer: RequestListener): Promise<FakeWorker> {
    const found: FakeWorker[] = []
    const server = createServer((request, response) => {
      const worker = found[0] as FakeWorker
      const path = request.url ?? ''
      if (worker.isSilent && path === '/health') return void request.socket.destroy()
      if (path === '/health') return void response.end('{}')
      if (path === '/worker') return void response.end(JSON.stringify({ instance: 'one', events: null }))
      worker.asked.push(path)
      worker.open += 1
      response.on('close', () => (worker.open -= 1))
      answer(request, response)
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => {
      server.close()
      server.closeAllConnections()
    })
    const worker = new FakeWorker(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    found.push(worker)
    return worker
  }
}

async function routerOf(
  t: ExecutionContext,
  workers: readonly FakeWorker[],
): Promise<{ readonly router: RouterServer; readonly post: (signal?: AbortSignal) => Promise<Response> }> {
  const router = createRouter({ workers: workers.map(({ at }) => at), drainSeconds: 60 })
  t.teardown(() => router.close())
  const at = await router.listen({ port: 0 })
  const post = (signal?: AbortSignal): Promise<Response> =>
    fetch(`${at}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: MESSAGES, stream: true }),
      ...(signal === undefined ? {} : { signal }),
    })
  return { router, post }
}

const isKeys = (path: string): boolean => path.startsWith('/worker/keys')

/** Returns no keys, and begins an answer without an end. */
const endless: RequestListener = (request, response) => {
  if (!isKeys(request.url ?? '')) response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: {}\n\n')
}

test('a client that leaves while the keys of its prompt are computed asks no worker, and leaves no load', async t => {
  const workers = [await FakeWorker.of(t, endless), await FakeWorker.of(t, endless)]
  const { router, post } = await routerOf(t, workers)
  const asked = (): string[] => workers.flatMap(worker => worker.asked)
  const gone = new AbortController()
  const left = post(gone.signal)
  t.true(await until(() => asked().some(isKeys)))
  t.is(router.active, 1, 'a router that drains waits for it')
  gone.abort()
  await t.throwsAsync(left, { any: true })
  t.true(await until(() => router.active === 0))
  t.true(await until(() => workers.every(({ open }) => open === 0)), 'the work on the keys ends')
  t.is(asked().length, 1, asked().join())
})

test('an answer whose client has gone before ends at once', async t => {
  const worker = await FakeWorker.of(t, (_, response) => {
    const write = (): void => {
      while (!response.destroyed && response.write('x'.repeat(2 ** 16)));
      if (!response.destroyed) response.once('drain', write)
    }
    write()
  })
  const proxy = new Proxy()
  t.teardown(() => proxy.close())
  const { signal } = new AbortController()
  const passed = { method: 'GET', path: '/x', headers: {}, body: undefined, signal }
  const answer = await proxy.ask(new URL(worker.at), passed)
  const gone = new ServerResponse(new IncomingMessage(new Socket()))
  gone.destroy()
  t.false(await proxy.answer(answer, gone))
  t.true(await until(() => worker.open === 0))
})

test('a request moves on from a worker that hangs before its answer, and the worker is used again', async t => {
  let hanging: FakeWorker | undefined
  const workers: FakeWorker[] = []
  for (const name of ['one', 'two'])
    workers.push(
      await FakeWorker.of(t, (request, response) => {
        if (isKeys(request.url ?? '')) return void response.writeHead(503).end()
        if (hanging !== undefined && request.socket.localPort === Number(new URL(hanging.at).port)) return
        response.end(name)
      }),
    )
  const { router, post } = await routerOf(t, workers)
  const first = await (await post()).text()
  const [chosen, other] = first === 'one' ? workers : workers.toReversed()
  hanging = chosen
  const hung = post()
  t.true(await until(() => chosen?.open === 1))
  if (chosen !== undefined) chosen.isSilent = true
  t.is(await (await hung).text(), first === 'one' ? 'two' : 'one')
  t.true(await until(() => chosen?.open === 0 && router.active === 0))
  // It answers again: its next requests have a signal that is not aborted.
  hanging = undefined
  if (chosen !== undefined) chosen.isSilent = false
  if (other !== undefined) other.isSilent = true
  t.true(await until(async () => (await (await post()).text()) === first, 100))
})

test('a stream ends with an error if its worker hangs in the middle, and goes on while bytes come', async t => {
  const pulses: NodeJS.Timeout[] = []
  t.teardown(() => pulses.forEach(pulse => clearInterval(pulse)))
  let isAlive = false
  const worker = await FakeWorker.of(t, (request, response) => {
    if (isKeys(request.url ?? '')) return void response.writeHead(503).end()
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: {}\n\n')
    if (isAlive) pulses.push(setInterval(() => response.write('data: {}\n\n'), 500))
  })
  const { router, post } = await routerOf(t, [worker])
  const hung = await post()
  isAlive = true
  const streaming = await post()
  const reader = (streaming.body as ReadableStream<Uint8Array>).getReader()
  worker.isSilent = true
  t.regex(await hung.text(), /^data: \{\}\n\ndata: .*worker_lost.*\n\n$/)
  t.false((await reader.read()).done)
  t.true(await until(() => worker.open === 1))
  await reader.cancel()
  t.true(await until(() => router.active === 0))
})
