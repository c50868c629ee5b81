// Downloads over a network that fails, from a server that is wrong, onto a disk that is full: the content is right or not there.
import { existsSync, mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import type { DownloadOptions, DownloadRetry } from '../../../lib/text/hub/settings.js'
import { folderOf } from '../../support/folder.js'
import { type HubFault, type HubRequest, HubServer, sha256 } from '../../support/hub.js'
import {
  bytesOf,
  checkBlobs,
  checkSnapshot,
  communityFiles,
  DEFAULT_FILES,
  findOn,
  listed,
  LIMITS,
  withoutVariables,
} from '../../support/hub-repository.js'
import { rejected } from '../../support/throws.js'

withoutVariables()

const DATA = 'onnx/model_q4.onnx_data'
const FILES = communityFiles('faults')
const SUM = sha256(FILES[DATA] as Buffer)

interface Place {
  readonly server: HubServer
  readonly cache: string
  readonly commit: string
}

async function placeOf(t: ExecutionContext): Promise<Place> {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  return { server, cache, commit: server.add('org/name', FILES) }
}

/** A fault for the first `times` requests for the content of a file. */
const faulty =
  (fault: HubFault, times = 1, file = DATA) =>
  (request: HubRequest): HubFault | undefined =>
    request.file === file && request.isStorage && request.count < times ? fault : undefined

const rangesOf = ({ requests }: HubServer): (string | undefined)[] =>
  requests.filter(({ file, isStorage }) => file === DATA && isStorage).map(({ headers }) => headers.range)

/** Faults that a download survives, with the ranges that it asks for. */
const SURVIVED: Readonly<
  Record<
    string,
    { readonly fault: HubFault; readonly times?: number; readonly ranges: readonly (string | undefined)[] }
  >
> = {
  'a connection that ends': { fault: { cut: 20_000 }, ranges: [undefined, 'bytes=20000-'] },
  'connections that end again and again, each after some bytes': {
    fault: { cut: 6000 },
    times: 8,
    ranges: [undefined, ...[6, 12, 18, 24, 30, 36, 42, 48].map(thousands => `bytes=${thousands}000-`)],
  },
  'a body that stops': { fault: { stall: 20_000 }, ranges: [undefined, 'bytes=20000-'] },
  'a body that never begins': { fault: { stall: 0 }, ranges: [undefined, undefined] },
  'wrong bytes': { fault: { wrong: 7 }, ranges: [undefined, undefined] },
  'bytes behind the end': { fault: { longer: 9 }, ranges: [undefined, undefined] },
  'a 503': { fault: { status: 503 }, ranges: [undefined, undefined] },
  'a 429': { fault: { status: 429 }, ranges: [undefined, undefined] },
  'an address that has expired': { fault: { status: 403 }, ranges: [undefined, undefined] },
  'a slow server': { fault: { slow: 1000 }, ranges: [undefined] },
}

for (const [name, { fault, times = 1, ranges }] of Object.entries(SURVIVED))
  test(`a download survives ${name}`, async t => {
    const { server, cache, commit } = await placeOf(t)
    server.fault = faulty(fault, times)
    await findOn(server, cache, 'org/name', {}, 'stall' in fault ? { limits: { stallMs: 1500 } } : {})
    checkSnapshot(t, cache, commit, FILES, DEFAULT_FILES)
    t.deepEqual(rangesOf(server), ranges)
  })

test('a body that stops is noticed after garbage was collected, and so is an abortion', async t => {
  const { server, cache, commit } = await placeOf(t)
  const collecting = setInterval(() => globalThis.gc?.(), 300)
  t.teardown(() => clearInterval(collecting))
  server.fault = faulty({ stall: 20_000 }, 2)
  const stop = new AbortController()
  setTimeout(() => stop.abort(), 1000)
  await rejected(findOn(server, cache, 'org/name', { signal: stop.signal }, { limits: { stallMs: 60_000 } }), 'ABORTED')
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, FILES, DEFAULT_FILES)
})

/** Leaves a part of the data in the cache, as an earlier call does. */
function leave({ cache }: Place, content: Buffer): void {
  const blobs = join(cache, 'models--org--name', 'blobs')
  mkdirSync(blobs, { recursive: true })
  writeFileSync(join(blobs, `${SUM}.kvtide.incomplete`), content)
}

test('what an earlier call left is hashed, and the rest is asked for', async t => {
  const place = await placeOf(t)
  const content = FILES[DATA] as Buffer
  leave(place, content.subarray(0, 30_000))
  await findOn(place.server, place.cache)
  t.deepEqual(rangesOf(place.server), ['bytes=30000-'])
  checkSnapshot(t, place.cache, place.commit, FILES, DEFAULT_FILES)
})

test('a part that is all there is asked for no more', async t => {
  const place = await placeOf(t)
  leave(place, FILES[DATA] as Buffer)
  await findOn(place.server, place.cache)
  t.deepEqual(rangesOf(place.server), [])
  checkSnapshot(t, place.cache, place.commit, FILES, DEFAULT_FILES)
})

for (const [name, content] of Object.entries({
  'with other bytes': bytesOf('others', 30_000),
  'that is longer than the file': bytesOf('others', 60_000),
  'of the same length with other bytes': bytesOf('others', 50_000),
}))
  test(`a part ${name} is fetched from the start`, async t => {
    const place = await placeOf(t)
    leave(place, content)
    await findOn(place.server, place.cache)
    t.is(rangesOf(place.server).at(-1), undefined)
    checkSnapshot(t, place.cache, place.commit, FILES, DEFAULT_FILES)
  })

test('a part that is wrong does not count against the server', async t => {
  const place = await placeOf(t)
  leave(place, bytesOf('others', 30_000))
  place.server.fault = request => (request.headers.range === undefined ? faulty({ wrong: 3 }, 2)(request) : undefined)
  await findOn(place.server, place.cache)
  t.deepEqual(rangesOf(place.server), ['bytes=30000-', undefined, undefined])
  checkSnapshot(t, place.cache, place.commit, FILES, DEFAULT_FILES)
})

test('a server that ignores ranges sends the whole file, which is not put behind the part', async t => {
  const place = await placeOf(t)
  leave(place, (FILES[DATA] as Buffer).subarray(0, 30_000))
  place.server.fault = faulty({ ignoresRange: true }, 9)
  await findOn(place.server, place.cache)
  t.deepEqual(rangesOf(place.server), ['bytes=30000-'])
  checkSnapshot(t, place.cache, place.commit, FILES, DEFAULT_FILES)
})

test('wrong bytes again and again are CORRUPT, and nothing of them stays', async t => {
  const { server, cache } = await placeOf(t)
  server.fault = faulty({ wrong: 7 }, 99)
  const error = await rejected(findOn(server, cache), 'CORRUPT')
  t.regex(error.message, /^the content of onnx\/model_q4\.onnx_data is [0-9a-f]{64}, expected the sum [0-9a-f]{64}/)
  t.is(rangesOf(server).length, 2)
  t.false(existsSync(join(cache, 'models--org--name', 'snapshots')))
  t.deepEqual(
    listed(cache).filter(({ path }) => path.includes(SUM)),
    [],
  )
  checkBlobs(t, cache)
})

test('small files are compared with the sum that git gives them', async t => {
  const { server, cache } = await placeOf(t)
  server.fault = ({ file }) => (file === 'tokenizer_config.json' ? { wrong: 3 } : undefined)
  const error = await rejected(findOn(server, cache), 'CORRUPT')
  t.regex(error.message, /^the content of tokenizer_config\.json is [0-9a-f]{40}, expected/)
})

test('a server that sends nothing new is given up, with the number of attempts bounded', async t => {
  for (const fault of [
    { cut: 0 },
    { cut: 20_000, ignoresRange: true },
    { stall: 0 },
    { longer: 9 },
    { status: 500 },
  ] as const) {
    const { server, cache } = await placeOf(t)
    server.fault = faulty(fault, 99)
    await rejected(
      findOn(server, cache, 'org/name', {}, { limits: { ...('stall' in fault ? { stallMs: 200 } : {}), attempts: 3 } }),
      'HUB_UNAVAILABLE',
    )
    t.is(rangesOf(server).length, 3, JSON.stringify(fault))
  }
})

test('each further attempt is announced with its reason, and an error of onRetry ends the download', async t => {
  const { server, cache } = await placeOf(t)
  server.fault = faulty({ status: 503 }, 2)
  const told: DownloadRetry[] = []
  await findOn(server, cache, 'org/name', { onRetry: retry => told.push(retry) })
  t.deepEqual(
    told.map(({ failed, attempts }) => [failed, attempts]),
    [
      [1, LIMITS.attempts],
      [2, LIMITS.attempts],
    ],
  )
  t.true(told.every(({ reason, pauseMs }) => reason.endsWith('answers 503') && pauseMs > 0))
  const [own, other] = [new Error('mine'), await placeOf(t)]
  other.server.fault = faulty({ status: 503 }, 99)
  const onRetry = (): never => {
    throw own
  }
  t.is(await t.throwsAsync(findOn(other.server, other.cache, 'org/name', { onRetry })), own)
})

const date = (): string => new Date(Date.now() + 2000).toUTCString()

test('the pause that a server asks for is kept, in seconds, as a date and as RateLimit', async t => {
  for (const headers of [
    () => ({ 'retry-after': '1' }),
    () => ({ 'retry-after': date() }),
    () => ({ ratelimit: '"api";r=0;t=1' }),
  ]) {
    const { server, cache, commit } = await placeOf(t)
    server.fault = ({ path, count }) =>
      path.includes('/tree/') && count === 0 ? { status: 429, headers: headers() } : undefined
    const start = performance.now()
    await findOn(server, cache)
    t.true(performance.now() - start > 900, JSON.stringify(headers()))
    checkSnapshot(t, cache, commit, FILES, DEFAULT_FILES)
  }
})

test('a server that asks for a pause of an hour is given up at once', async t => {
  const { server, cache } = await placeOf(t)
  server.fault = () => ({ status: 503, headers: { 'retry-after': '3600' } })
  const error = await rejected(findOn(server, cache), 'HUB_UNAVAILABLE')
  t.regex(error.details.reason, /answers 503/)
  t.is(server.requests.length, 1)
})

test('an answer that does not begin is late', async t => {
  const { server, cache } = await placeOf(t)
  const silent = createServer(() => undefined)
  await new Promise<void>(resolve => silent.listen(0, '127.0.0.1', resolve))
  t.teardown(() => silent.closeAllConnections())
  t.teardown(() => silent.close())
  const endpoint = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`
  const error = await rejected(
    findOn(server, cache, 'org/name', { endpoint }, { limits: { answerMs: 60, attempts: 2 } }),
    'HUB_UNAVAILABLE',
  )
  t.regex(error.message, /no byte in 60 ms/)
})

/** A server that answers as it likes. */
async function wrongServer(t: ExecutionContext, answer: RequestListener): Promise<string> {
  const server = createServer(answer)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

test('redirects end, and the token follows none to another host', async t => {
  const { server, cache } = await placeOf(t)
  const seen: (string | undefined)[] = []
  const other = await wrongServer(t, (request, response) => {
    seen.push(request.headers.authorization)
    response.writeHead(302, { location: `${request.url}x` }).end()
  })
  const own = await wrongServer(t, (_, response) => response.writeHead(302, { location: `${other}/a` }).end())
  const options: DownloadOptions = { endpoint: own, token: 'hf_secret' }
  const error = await rejected(
    findOn(server, cache, 'org/name', options, { limits: { attempts: 1 } }),
    'HUB_UNAVAILABLE',
  )
  t.regex(error.message, /redirects more than 10 times/)
  t.deepEqual([...new Set(seen)], [undefined])
  for (const location of ['', 'file:///etc/passwd', 'http://', 'javascript:1']) {
    const to = await wrongServer(t, (_, response) => response.writeHead(302, { location }).end())
    await rejected(findOn(server, cache, 'org/name', { endpoint: to }, { limits: { attempts: 1 } }), 'HUB_UNAVAILABLE')
  }
})

test('an answer that is no answer of the Hub says so', async t => {
  const { server, cache } = await placeOf(t)
  const html = await wrongServer(t, (_, response) =>
    response.writeHead(200, { 'content-type': 'text/html' }).end('<html>log in</html>'),
  )
  const error = await rejected(
    findOn(server, cache, 'org/name', { endpoint: html }, { limits: { attempts: 1 } }),
    'HUB_UNAVAILABLE',
  )
  t.regex(error.message, /not JSON: there may be a proxy or a login page/)
  for (const named of ['', '../../../x', 'a'.repeat(39), 'A'.repeat(40)]) {
    server.named = named
    await rejected(findOn(server, cache), 'CORRUPT')
  }
  server.named = undefined
  for (const value of [
    {},
    'x',
    null,
    [7],
    [null],
    [{ type: 'file' }],
    [{ type: 'file', path: 7, size: 1, oid: 'a'.repeat(40) }],
  ]) {
    server.listed = () => value
    await rejected(findOn(server, cache), 'CORRUPT')
  }
  t.false(existsSync(join(cache, 'models--org--name')))
})

/** Changes of the entry of a file that must be refused. */
const EVIL: Readonly<Record<string, object>> = {
  'a sum that is a path': { oid: '../../../../x' },
  'a sum of another kind': { lfs: { oid: 'b'.repeat(40), size: 5 } },
  'a size that is none': { size: -1 },
  'a size of another type': { size: '5' },
  'a size that is not the content': { size: 3 },
}

for (const [name, change] of Object.entries(EVIL))
  test(`the list of files with ${name} is refused`, async t => {
    const { server, cache } = await placeOf(t)
    server.listed = entries => entries.map(entry => (entry['path'] === 'config.json' ? { ...entry, ...change } : entry))
    const error = await t.throwsAsync(findOn(server, cache, 'org/name', {}, { limits: { attempts: 2 } }))
    t.true(['CORRUPT', 'HUB_UNAVAILABLE'].includes((error as unknown as { readonly code: string }).code))
    t.false(existsSync(join(cache, 'models--org--name', 'snapshots')))
    t.deepEqual(
      readdirSync(cache).filter(entry => !['models--org--name', '.locks'].includes(entry)),
      [],
    )
  })

for (const folder of ['../../..', 'a/../../../..', '..\\..\\..', 'C:', 'con', 'a\u202Eb', 'a '])
  test(`a file in a folder named ${JSON.stringify(folder)} is refused`, async t => {
    const { server, cache } = await placeOf(t)
    server.listed = entries =>
      entries
        .filter(({ path }) => !String(path).endsWith('.onnx'))
        .concat(
          entries
            .filter(({ path }) => path === 'onnx/model_q4.onnx')
            .map(entry => ({ ...entry, path: `${folder}/model_q4.onnx` })),
        )
    await rejected(findOn(server, cache), 'CORRUPT')
    t.false(existsSync(join(cache, 'models--org--name')))
  })

test('odd names of files that nothing needs do no harm', async t => {
  const { server, cache, commit } = await placeOf(t)
  server.listed = entries => [...entries, { ...entries.at(-1), path: '../../evil' }, { ...entries.at(-1), path: 'a:b' }]
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, FILES, DEFAULT_FILES)
  t.false(existsSync(join(cache, '..', 'evil')))
})

test('a download for which there is no room is refused before it begins', async t => {
  const { server, cache } = await placeOf(t)
  server.listed = entries =>
    entries.map(entry =>
      entry['path'] === DATA ? { ...entry, lfs: { oid: SUM, size: 2 ** 52, pointerSize: 1 } } : entry,
    )
  const error = await rejected(findOn(server, cache), 'IO_ERROR')
  t.regex(
    error.message,
    /^cannot download org\/name: 4503599\.\d+ GB are missing, and the disk of .* has room for \d+\.\d+ GB$/,
  )
  t.deepEqual(rangesOf(server), [])
})

test('a cache folder that cannot be made says which', async t => {
  const { server, cache } = await placeOf(t)
  writeFileSync(join(cache, 'file'), '')
  const error = await rejected(findOn(server, join(cache, 'file', 'cache')), 'IO_ERROR')
  t.true(error.details.path.startsWith(join(cache, 'file')), error.details.path)
  t.true(statSync(join(cache, 'file')).isFile())
})

test('a snapshot that cannot be finished has no graph', async t => {
  const { server, cache, commit } = await placeOf(t)
  const snapshot = join(cache, 'models--org--name', 'snapshots', commit)
  for (const path of ['tokenizer.json', DATA]) {
    mkdirSync(join(snapshot, path), { recursive: true })
    const error = await rejected(findOn(server, cache), 'IO_ERROR')
    t.is(error.details.path, join(snapshot, path))
    t.false(existsSync(join(snapshot, 'onnx', 'model_q4.onnx')), path)
    t.false(existsSync(join(cache, 'models--org--name', 'refs')), path)
    rmSync(join(snapshot, path), { recursive: true })
  }
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, FILES, DEFAULT_FILES)
})
