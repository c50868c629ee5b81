// A disk that is full: a save fails and leaves the old file, a tier drops what it cannot write, and the cache goes on.
import { readdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { spawn } from 'node:child_process'

import test from 'ava'

import { PagedKvCache } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { indexUrl, root } from '../support/packaging/child.js'

const onPosix = process.platform === 'win32' ? test.skip : test
/** Wide tokens, so that a sequence of a few is larger than the limit. */
const SIZES = {
  capacity: 64,
  blockSize: 4,
  numLayers: 2,
  numKvHeads: 2,
  headDim: 64,
  namespace: 'full',
  prefixKey: new Uint8Array(32).fill(3),
}

const PROGRAM = `
  const { PagedKvCache } = await import(${JSON.stringify(indexUrl)})
  const [, folder] = process.argv
  const sizes = { ...${JSON.stringify({ ...SIZES, prefixKey: undefined })}, prefixKey: new Uint8Array(32).fill(3) }
  const cache = new PagedKvCache({ ...sizes, tiers: { disk: { path: folder + '/tier' }, deadline: 60000 } })
  const compute = (first, count) => {
    const sequence = cache.openSequence()
    const rows = { data: new Float32Array(2 * 2 * count * 64).fill(first), shape: [2, 2, count, 64] }
    sequence.append({ k: rows, v: rows, tokens: Array.from({ length: count }, (_, at) => first + at) })
    return sequence
  }
  const said = {}
  const chat = compute(1, 100)
  try { await chat.save(folder + '/chat.kv') } catch (error) { said.save = [error.code, error.details.operation] }
  try { await cache.save(folder + '/all.kv') } catch (error) { said.all = [error.code, error.details.operation] }
  said.isFlushed = await cache.flush(60000)
  const { stored, dropped, found } = cache.stats().tiers.disk
  said.disk = { stored, dropped, found }
  cache.checkInvariants()
  said.length = cache.match(Array.from({ length: 100 }, (_, at) => 1 + at)).length
  await cache[Symbol.asyncDispose]()
  console.log(JSON.stringify(said))
`

/** Runs the program where no file may be longer than some KiB: the nearest thing to a full disk that needs no rights. */
function runLimited(folder: string, kibibytes: number): Promise<{ code: number | null; out: string; err: string }> {
  const node = [process.execPath, '--import=tsx', '--input-type=module', '--eval', '"$PROGRAM"', '"$FOLDER"'].join(' ')
  const child = spawn('sh', ['-c', `trap '' XFSZ; ulimit -f ${kibibytes}; exec ${node}`], {
    cwd: root,
    env: { ...process.env, PROGRAM, FOLDER: folder },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const said = { out: '', err: '' }
  child.stdout.on('data', chunk => (said.out += String(chunk)))
  child.stderr.on('data', chunk => (said.err += String(chunk)))
  return new Promise(resolve => child.on('close', code => resolve({ code, ...said })))
}

onPosix('a save to a full disk leaves the old file and no other, and a full tier drops its entries', async t => {
  const folder = await folderOf(t)
  const path = join(folder, 'chat.kv')
  {
    using cache = new PagedKvCache(SIZES)
    using chat = cache.openSequence()
    const rows = { data: new Float32Array(2 * 2 * 3 * 64).fill(5), shape: [2, 2, 3, 64] }
    chat.append({ k: rows, v: rows, tokens: [7, 8, 9] })
    await chat.save(path)
  }
  const before = await readFile(path)
  // An entry is longer than a kibibyte, and a saved conversation than fifty.
  for (const [kibibytes, drops] of [
    [50, false],
    [1, true],
  ] as const) {
    await rm(join(folder, 'tier'), { recursive: true, force: true })
    const { code, out, err } = await runLimited(folder, kibibytes)
    t.deepEqual({ code, err }, { code: 0, err: '' })
    const said = JSON.parse(out) as {
      save: string[]
      all: string[]
      disk: { stored: number; dropped: number }
      length: number
    }
    t.deepEqual(
      [said.save, said.all],
      [
        ['IO_ERROR', 'write'],
        ['IO_ERROR', 'write'],
      ],
    )
    t.is(said.length, 96, 'the cache goes on')
    t.is(said.disk.stored > 0, !drops)
    t.is(said.disk.dropped > 0, drops)
    t.is(Buffer.compare(await readFile(path), before), 0)
    const left = await readdir(folder, { recursive: true, withFileTypes: true })
    const files = left.filter(entry => entry.isFile() && !entry.parentPath.includes('tier')).map(({ name }) => name)
    t.deepEqual(files, ['chat.kv'])
    t.false(
      left.some(({ name }) => name.endsWith('.tmp')),
      'no temporary file is left',
    )
  }
})
