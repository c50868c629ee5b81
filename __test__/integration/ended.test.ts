// Processes and worker threads that end in the middle of background work of every kind: no crash, no half file, and what comes later works on the same folder.
import { spawn } from 'node:child_process'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

import test, { type ExecutionContext } from 'ava'

import { isKvTideError, PagedKvCache } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { root } from '../support/packaging/child.js'
import { Chance, DIM, LAYERS } from '../support/racing/rows.js'
import { Racing } from '../support/racing/racing.js'
import type { Task } from '../support/racing/program.js'

const PROGRAM = fileURLToPath(new URL('../support/racing/program.ts', import.meta.url))
const onPosix = process.platform === 'win32' ? test.serial.skip : test.serial
/** The number of processes for each way to end; `KVTIDE_ENDED` sets another number. */
const ROUNDS = Number(process.env['KVTIDE_ENDED'] ?? 2)

interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly out: string
  readonly err: string
}

/** Runs a program. With a signal, it gets it at a random moment of its work. */
async function run(task: Task, signal?: NodeJS.Signals): Promise<Ended> {
  const child = spawn(process.execPath, ['--import=tsx', PROGRAM, JSON.stringify(task)], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const said = { out: '', err: '' }
  child.stderr.on('data', chunk => (said.err += String(chunk)))
  child.stdout.on('data', chunk => {
    said.out += String(chunk)
    if (signal !== undefined) void setTimeout(new Chance(task.seed).below(60)).then(() => child.kill(signal))
  })
  return new Promise(resolve => child.on('close', (code, by) => resolve({ code, signal: by, ...said })))
}

/** Checks that every saved file of a folder is whole, and that a program works there. */
async function check(t: ExecutionContext, folder: string, seed: number): Promise<number> {
  using cache = new PagedKvCache({
    capacity: 28,
    blockSize: 4,
    numLayers: LAYERS,
    numKvHeads: 1,
    headDim: DIM,
    namespace: 'racing',
    prefixKey: new Uint8Array(32).fill(9),
  })
  const files = (await readdir(folder)).filter(file => file.endsWith('.kv'))
  for (const file of files) {
    const refused: string[] = []
    for (const salt of ['tenant 0', 'tenant 1']) {
      try {
        const sequence = await cache.loadSequence(join(folder, file), { salt })
        sequence.dispose()
      } catch (error) {
        if (!isKvTideError(error)) throw error
        refused.push(error.code)
      }
    }
    // An empty sequence belongs to no tenant.
    t.true(
      refused.length === 0 || (refused.length === 1 && refused[0] === 'INCOMPATIBLE'),
      `${file}: ${refused.join()}`,
    )
  }
  const racing = new Racing(seed, folder)
  for (let step = 0; step < 100; step++) await racing.step()
  await racing.settle()
  return files.length
}

const temporary = async (folder: string): Promise<string[]> =>
  (await readdir(folder, { recursive: true })).filter(file => file.endsWith('.tmp'))

test.serial('a process that exits in the middle of everything has its own exit code', async t => {
  const folder = await folderOf(t)
  for (let seed = 1; seed <= ROUNDS; seed++) {
    const exits = await run({ folder, seed, ending: 'exit' })
    t.like(exits, { code: 0, signal: null, err: '' })
    const throws = await run({ folder, seed, ending: 'throw' })
    t.like(throws, { code: 1, signal: null })
    t.regex(throws.err, /thrown by the program/)
  }
  await check(t, folder, 77)
})

onPosix('a process that Ctrl-C, SIGTERM or kill -9 ends in the middle of everything leaves whole files', async t => {
  const folder = await folderOf(t)
  let files = 0
  for (let seed = 1; seed <= ROUNDS; seed++) {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGKILL'] as const) {
      const ended = await run({ folder, seed: seed * 10 + signal.length, ending: 'never' }, signal)
      t.like(ended, { code: null, signal, err: '' })
    }
    files = await check(t, folder, seed)
  }
  t.true(files > 0)
})

test.serial('workers that are terminated in the middle of everything leave nothing behind', async t => {
  const folder = await folderOf(t)
  const { code, signal, out, err } = await run({
    folder,
    seed: Date.now() & 0xffff,
    ending: 'workers',
    rounds: 4 * ROUNDS,
  })
  t.deepEqual({ code, signal, err }, { code: 0, signal: null, err: '' })
  t.is(out.trim(), '0', 'bytes that are still in use')
  t.deepEqual(await temporary(folder), [])
  t.true((await check(t, folder, 78)) > 0)
})
