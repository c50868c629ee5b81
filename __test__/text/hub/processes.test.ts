// Several processes, and random faults: whatever happens, a blob has the content that its name says, and a snapshot with a graph is whole.
import { type ChildProcess, spawn } from 'node:child_process'
import {
  chmodSync,
  closeSync,
  existsSync,
  openSync,
  readFileSync,
  renameSync,
  statSync,
  utimesSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import test, { type ExecutionContext } from 'ava'

import { isKvTideError } from '../../../index.js'
import { folderOf } from '../../support/folder.js'
import { type HubFault, type HubRequest, HubServer, sha256 } from '../../support/hub.js'
import {
  checkBlobs,
  checkSnapshot,
  communityFiles,
  DEFAULT_FILES,
  findOn,
  LIMITS,
  listed,
  stateOf,
  withoutVariables,
} from '../../support/hub-repository.js'
import { root } from '../../support/packaging/child.js'
import { rejected } from '../../support/throws.js'
import { until } from '../../support/until.js'

withoutVariables()

const PROGRAM = fileURLToPath(new URL('../../support/hub-process.ts', import.meta.url))
const DATA = 'onnx/model_q4.onnx_data'

interface Running {
  readonly child: ChildProcess
  readonly printed: { text: string }
  readonly ended: Promise<string>
}

/** Starts a process that downloads; `shell` runs before it. */
function start(
  server: HubServer,
  cacheFolder: string,
  { shell = '', uid }: { readonly shell?: string; readonly uid?: number } = {},
): Running {
  const task = JSON.stringify({ name: 'org/name', options: { cacheFolder, endpoint: server.endpoint }, limits: LIMITS })
  const child = spawn('/bin/sh', ['-c', `${shell} exec "$0" --import=tsx "$@"`, process.execPath, PROGRAM, task], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(uid === undefined ? {} : { uid, env: { ...process.env, HOME: '/nonexistent' } }),
  })
  const printed = { text: '' }
  for (const stream of [child.stdout, child.stderr]) stream.on('data', piece => (printed.text += String(piece)))
  const ended = new Promise<string>(resolve => {
    child.on('close', () => resolve(printed.text))
  })
  return { child, printed, ended }
}

const ranges = ({ requests }: HubServer, file = DATA): (string | undefined)[] =>
  requests.filter(each => each.file === file && each.isStorage).map(({ headers }) => headers.range)

test('a process that is killed leaves a part, and the next one resumes it at once', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('kill', 600_000)]
  const commit = server.add('org/name', files)
  server.fault = ({ file, isStorage }) => (file === DATA && isStorage ? { slow: 4000 } : undefined)
  const { child, printed, ended } = start(server, cache)
  t.true(
    await until(
      () =>
        Number(/at onnx\/model_q4\.onnx_data (\d+)\n(?!.*model_q4\.onnx_data )/s.exec(printed.text)?.[1] ?? 0) >
        100_000,
    ),
  )
  child.kill('SIGKILL')
  await ended
  t.false(existsSync(join(cache, 'models--org--name', 'snapshots')), 'no snapshot that others would take for whole')
  checkBlobs(t, cache)
  const sum = sha256(files[DATA] as Buffer)
  const part = statSync(join(cache, 'models--org--name', 'blobs', `${sum}.kvtide.incomplete`)).size
  t.true(part > 90_000 && part < 600_000)
  t.true(existsSync(join(cache, '.locks', 'models--org--name', `${sum}.kvtide.lock`)), 'its lock is still there')
  server.fault = () => undefined
  const begin = performance.now()
  await findOn(server, cache, 'org/name', {}, { limits: { lockMs: 60_000 } })
  t.true(performance.now() - begin < 30_000, 'the owner of the lock is known to be gone')
  t.is(ranges(server).at(-1), `bytes=${part}-`)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  t.deepEqual(
    listed(cache).filter(({ path }) => /incomplete|lock$/.test(path)),
    [],
  )
})

test('two processes and a third call download each file once', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('two', 300_000)]
  const commit = server.add('org/name', files)
  server.fault = ({ isStorage }) => (isStorage ? { slow: 1000 } : undefined)
  const running = [start(server, cache), start(server, cache)]
  t.true(await until(() => running.some(({ printed }) => printed.text.includes(`at ${DATA}`))))
  const told: number[] = []
  await findOn(server, cache, 'org/name', { onProgress: ({ allLoaded }) => told.push(allLoaded) })
  for (const { ended } of running) t.regex(await ended, /^found \{.*"dtype":"q4"/m)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  for (const file of [DATA, `${DATA}_1`, 'onnx/model_q4.onnx', 'tokenizer.json'])
    t.deepEqual(ranges(server, file), [undefined], file)
  t.true(told.length > 0, 'the one that waits tells the progress of the other')
})

test('a lock of another machine that no longer lives is taken over, one that lives is not', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('lock')]
  const commit = server.add('org/name', files)
  await findOn(server, cache, 'org/name', {}, { isText: true })
  const lock = join(cache, '.locks', 'models--org--name', `${sha256(files[DATA] as Buffer)}.kvtide.lock`)
  const owner = JSON.stringify({ id: 'another', pid: 1, system: 'another machine' })
  writeFileSync(lock, owner)
  let isAlive = true
  const beat = setInterval(() => {
    // The clock of the other machine is years behind.
    if (isAlive) utimesSync(lock, new Date(Date.now() - 1e11), new Date(Date.now() - 1e11))
  }, 40)
  t.teardown(() => clearInterval(beat))
  let isFound = false
  const found = findOn(server, cache, 'org/name', {}, { limits: { lockMs: 1500 } }).then(model => {
    isFound = true
    return model
  })
  await new Promise(resolve => setTimeout(resolve, 3000))
  t.false(isFound)
  t.is(readFileSync(lock, 'utf8'), owner)
  isAlive = false
  await found
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
})

/** Finishes a blob as another process does that has taken the lock over. Returns the blob, and the time of its last change. */
function takeOver(cache: string, content: Buffer): { readonly blob: string; readonly changed: number } {
  const sum = sha256(content)
  const owner = JSON.stringify({ id: 'another', pid: 1, system: 'another machine' })
  writeFileSync(join(cache, '.locks', 'models--org--name', `${sum}.kvtide.lock`), owner)
  const blob = join(cache, 'models--org--name', 'blobs', sum)
  const handle = openSync(`${blob}.kvtide.incomplete`, 'r+')
  writeSync(handle, content)
  closeSync(handle)
  renameSync(`${blob}.kvtide.incomplete`, blob)
  return { blob, changed: statSync(blob).mtimeMs }
}

for (const [name, fault] of Object.entries({
  'the whole file, and cuts it': { ignoresRange: true, cut: 5000 },
  'other bytes': { wrong: 9000 },
} satisfies Record<string, HubFault>))
  test(`a download that lost its lock leaves the finished file unchanged, if the Hub then sends ${name}`, async t => {
    const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('taken')]
    const commit = server.add('org/name', files)
    let taken: ReturnType<typeof takeOver> | undefined
    server.fault = ({ file, isStorage, count }) => {
      if (file !== DATA || !isStorage) return undefined
      if (count === 0) return { cut: 20_000 }
      taken ??= takeOver(cache, files[DATA] as Buffer)
      return fault
    }
    await findOn(server, cache)
    t.is(statSync(taken?.blob as string).mtimeMs, taken?.changed as number)
    checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  })

test('a wait for a lock ends with its signal', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('wait')]
  server.add('org/name', files)
  await findOn(server, cache, 'org/name', {}, { isText: true })
  writeFileSync(
    join(cache, '.locks', 'models--org--name', `${sha256(files[DATA] as Buffer)}.kvtide.lock`),
    '{"id":"x"}',
  )
  await rejected(
    findOn(server, cache, 'org/name', { signal: AbortSignal.timeout(200) }, { limits: { lockMs: 60_000 } }),
    'ABORTED',
  )
  t.pass()
})

const onPosix = process.platform === 'win32' ? test.skip : test

onPosix('a disk that is full is an error that says so, and a call with room resumes', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('full', 400_000)]
  const commit = server.add('org/name', files)
  // The system refuses to write beyond 400 blocks of 512 bytes of a file: the nearest thing to a full disk that needs no rights. Only `DATA` is larger, so
  // that no other file's error can end its download before it has begun.
  const text = await start(server, cache, { shell: "trap '' XFSZ; ulimit -f 400;" }).ended
  t.regex(
    text,
    /^refused \{"code":"IO_ERROR","message":"cannot write .*: there is no room left \(EFBIG\): free some and call again/m,
  )
  checkBlobs(t, cache)
  t.false(existsSync(join(cache, 'models--org--name', 'snapshots')))
  await findOn(server, cache)
  t.is(ranges(server).at(-1), `bytes=${400 * 512}-`)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
})

onPosix('a cache folder that is read-only serves what it has, and says what to do for more', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('read')]
  server.add('org/name', files)
  await findOn(server, cache)
  const folders = [
    '',
    '.locks',
    '.locks/models--org--name',
    'models--org--name',
    'models--org--name/blobs',
    'models--org--name/refs',
    'models--org--name/snapshots',
  ]
  const all = (mode: number): void => folders.forEach(folder => chmodSync(join(cache, folder), mode))
  all(0o555)
  t.teardown(() => all(0o755))
  const state = stateOf(cache)
  // The rights of folders don't bind root, so that the program runs as another user.
  const as = process.getuid?.() === 0 ? { uid: 65_534 } : {}
  t.regex(await start(server, cache, as).ended, /^found /m)
  server.add('org/name', { ...files, 'config.json': '{"changed":1}' })
  const text = await start(server, cache, as).ended
  t.regex(
    text,
    /^refused \{"code":"IO_ERROR","message":"cannot write .*: it is not writable \(EACCES\): set HF_HUB_CACHE or cacheFolder/m,
  )
  t.is(stateOf(cache), state)
})

const SCHEDULES = Number(process.env['KVTIDE_HUB_SCHEDULES'] ?? 25)
const FIRST = Number(process.env['KVTIDE_FIRST_SEED'] ?? 1)

/** Numbers that follow from a seed. */
function randomOf(seed: number): (below: number) => number {
  let state = seed
  return below => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

function randomFault(random: (below: number) => number, size: number): HubFault | undefined {
  const faults: readonly (() => HubFault | undefined)[] = [
    () => ({ cut: random(size) }),
    () => ({ stall: random(size) }),
    () => ({ wrong: random(size) }),
    () => ({ longer: 1 + random(9) }),
    () => ({ ignoresRange: true }),
    () => ({ slow: 500 + random(5000) }),
    () => ({ status: [429, 500, 502, 503, 504][random(5)] as number }),
  ]
  return random(2) === 0 ? undefined : faults[random(faults.length)]?.()
}

/** Calls of two clients over a network with random faults, some of them aborted, until one of them has the model. */
async function schedule(t: ExecutionContext, seed: number): Promise<void> {
  const random = randomOf(seed)
  const [server, cache, files] = [
    await HubServer.start(t),
    await folderOf(t),
    communityFiles(`schedule ${seed}`, 8000 + random(30_000)),
  ]
  const commit = server.add('org/name', files)
  server.fault = ({ isStorage, file }: HubRequest) =>
    isStorage || file !== undefined || random(3) === 0 ? randomFault(random, 40_000) : undefined
  const limits = { stallMs: 60, answerMs: 1000, pauseMs: 1, attempts: 3 + random(3), lockMs: 500 }
  const call = async (): Promise<boolean> => {
    const signal = random(4) === 0 ? { signal: AbortSignal.timeout(random(120)) } : {}
    try {
      const { graph } = await findOn(server, cache, 'org/name', signal, { limits })
      t.true(readFileSync(graph as string).equals(files['onnx/model_q4.onnx'] as Buffer))
      return true
    } catch (error) {
      const isExpected = isKvTideError(error) && ['HUB_UNAVAILABLE', 'CORRUPT', 'ABORTED'].includes(error.code)
      if (!isExpected) throw error
      return false
    } finally {
      checkBlobs(t, cache)
      const snapshot = join(cache, 'models--org--name', 'snapshots', commit)
      if (existsSync(join(snapshot, 'onnx', 'model_q4.onnx')))
        for (const path of DEFAULT_FILES)
          t.true(readFileSync(join(snapshot, path)).equals(Buffer.from(files[path] as string)), path)
    }
  }
  for (let round = 0; ; round++) {
    if (round > 200) return t.fail(`schedule ${seed} never ended`)
    if (round === 20) server.fault = () => undefined
    const found = await Promise.all([call(), call()])
    if (found.includes(true)) break
  }
  server.fault = () => undefined
  await findOn(server, cache, 'org/name', {}, { limits: { lockMs: 500 } })
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  t.deepEqual(
    listed(cache).filter(({ path }) => /incomplete|lock$/.test(path)),
    [],
    `schedule ${seed}`,
  )
  await server.stop()
}

test(`${SCHEDULES} schedules of random faults end with the right content`, async t => {
  t.timeout(300_000)
  const seeds = Array.from({ length: SCHEDULES }, (_, place) => FIRST + place)
  const worker = async (): Promise<void> => {
    for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift()) {
      t.log(`KVTIDE_FIRST_SEED=${seed} KVTIDE_HUB_SCHEDULES=1`)
      await schedule(t, seed)
    }
  }
  await Promise.all([worker(), worker(), worker()])
})
