// What the archive for GPUs carries is unpacked once and whole: what is cut off, damaged or interrupted leaves nothing that looks like it.
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, constants } from 'node:zlib'

import test, { type ExecutionContext } from 'ava'

import { folder, root } from '../support/packaging/scripts.js'
import { checksum } from '../../scripts/cuda/bundle.mjs'
import { buildUnpacker } from '../../scripts/cuda/programs.mjs'
import { exists } from '../../scripts/steps.mjs'

const building = process.platform === 'linux' && exists('cargo') ? test : test.skip

/** Built at the first use: cargo waits while others build in the same folder. */
let built: Promise<string> | undefined
const program = (): Promise<string> => (built ??= (buildUnpacker() as Promise<[{ file: string }]>).then(([{ file }]) => file))

const FILE = 'carried.packed'

/** What does not compress, and is longer than a pipe. */
const NOISE = Buffer.from(Uint32Array.from({ length: 2 ** 18 }, (_, index) => Math.imul(index, 2_654_435_761) ^ Math.imul(index * index, 40_503)).buffer)

interface Made {
  readonly padding?: number
  readonly change?: (compressed: Buffer) => Buffer
  readonly sealed?: (compressed: Buffer) => Buffer
}

/** A folder with the program and what it unpacks: two files in a tar, with so many zeros behind its end. */
async function packed(t: ExecutionContext, { padding = 0, change = whole => whole, sealed = whole => whole }: Made = {}): Promise<string> {
  t.timeout(300_000)
  const at = folder(t)
  mkdirSync(join(at, 'package'))
  writeFileSync(join(at, 'package', 'noise'), NOISE)
  writeFileSync(join(at, 'package', 'program'), 'what is carried', { mode: 0o755 })
  const tar = execFileSync('tar', ['--create', '--file', '-', '--directory', at, 'package'], { maxBuffer: 2 ** 30 })
  rmSync(join(at, 'package'), { recursive: true })
  const params = { [constants.BROTLI_PARAM_QUALITY]: 1, [constants.BROTLI_PARAM_LARGE_WINDOW]: 1, [constants.BROTLI_PARAM_LGWIN]: 28 }
  const compressed = change(brotliCompressSync(Buffer.concat([tar, Buffer.alloc(padding)]), { params }))
  writeFileSync(join(at, FILE), sealed(Buffer.concat([compressed, checksum(compressed)])))
  copyFileSync(await program(), join(at, 'unpack'))
  return at
}

const unpack = (at: string, env = process.env) => spawnSync(join(at, 'unpack'), [join(at, FILE), join(at, 'unpacked')], { encoding: 'utf8', env })

/** A program in tar's place. */
function played(at: string, script: string): NodeJS.ProcessEnv {
  mkdirSync(join(at, 'bin'))
  writeFileSync(join(at, 'bin', 'tar'), `#!/bin/sh\n${script}\n`, { mode: 0o755 })
  return { PATH: `${join(at, 'bin')}:${process.env['PATH'] ?? ''}` }
}

function isWhole(t: ExecutionContext, at: string): void {
  t.deepEqual(readdirSync(at).filter(name => name.startsWith('unpacked')), ['unpacked'])
  t.deepEqual(readdirSync(join(at, 'unpacked')), ['package'])
  t.true(readFileSync(join(at, 'unpacked', 'package', 'noise')).equals(NOISE))
  t.is(statSync(join(at, 'unpacked', 'package', 'program')).mode & 0o777, 0o755)
}

building('what was packed is unpacked, though tar stops to read before all of it was written', async t => {
  for (const padding of [0, 2 ** 26]) {
    const at = await packed(t, { padding })
    const { status, stderr } = unpack(at)
    t.deepEqual([status, stderr], [0, ''], String(padding))
    isWhole(t, at)
  }
})

building('it is unpacked once', async t => {
  const at = await packed(t)
  t.is(unpack(at).status, 0)
  writeFileSync(join(at, 'unpacked', 'kept'), '')
  t.is(unpack(at).status, 0)
  t.true(readdirSync(join(at, 'unpacked')).includes('kept'))
})

const middle = (bytes: Buffer): number => Math.floor(bytes.length / 2)

const flipped = (bytes: Buffer): Buffer => {
  const copy = Buffer.from(bytes)
  const at = middle(copy)
  copy.writeUInt8(copy.readUInt8(at) ^ 1, at)
  return copy
}

building('what is cut off or damaged is told, and leaves nothing', async t => {
  const faults: Record<string, Made> = {
    'cut off': { sealed: whole => whole.subarray(0, middle(whole)) },
    'without its end': { sealed: whole => whole.subarray(0, -1) },
    'empty': { sealed: () => Buffer.alloc(0) },
    'damaged': { sealed: flipped },
    'damaged in its sum': { sealed: whole => Buffer.concat([whole.subarray(0, -1), Buffer.from([whole.at(-1)! ^ 1])]) },
    // As no accident makes it: with the sum of what is wrong.
    'packed in part': { change: whole => whole.subarray(0, middle(whole)) },
    'packed and no brotli': { change: () => NOISE },
    'packed and no tar': { change: () => brotliCompressSync('what is no tar'.repeat(1000)) },
  }
  for (const [name, made] of Object.entries(faults)) {
    const at = await packed(t, made)
    const { status, stderr } = unpack(at)
    t.is(status, 1, name)
    t.regex(stderr, /carried\.packed cannot be unpacked: ./, name)
    t.deepEqual(readdirSync(at).filter(file => file.startsWith('unpacked')), [], name)
  }
})

building('what was interrupted begins anew', async t => {
  const at = await packed(t)
  const killed = unpack(at, played(at, 'mkdir "$5/package"; echo half > "$5/package/left"; kill -9 $PPID'))
  t.is(killed.signal, 'SIGKILL')
  t.deepEqual(readdirSync(at).filter(name => name.startsWith('unpacked')), ['unpacked.partial'])
  t.deepEqual(readdirSync(join(at, 'unpacked.partial', 'package')), ['left'])
  t.is(unpack(at).status, 0)
  isWhole(t, at)
})

building('a tar that fails, or is not there, is told', async t => {
  const at = await packed(t)
  for (const [env, said] of [[played(at, 'exit 7'), /tar has ended with exit status: 7/], [{ PATH: '' }, /tar does not start: /]] as const) {
    const { status, stderr } = unpack(at, env)
    t.is(status, 1)
    t.regex(stderr, said)
    t.deepEqual(readdirSync(at).filter(name => name.startsWith('unpacked')), [])
  }
})

building('run.sh unpacks what lies beside it, and starts it where it could', async t => {
  const at = await packed(t)
  const carried = join(at, 'carried')
  mkdirSync(carried)
  writeFileSync(join(carried, 'node'), '#!/bin/sh\necho "started $1"\n', { mode: 0o755 })
  const compressed = brotliCompressSync(execFileSync('tar', ['--create', '--file', '-', '--directory', carried, 'node']))
  copyFileSync(join(root, 'scripts/cuda/carried/run.sh'), join(at, 'run.sh'))
  chmodSync(join(at, 'run.sh'), 0o755)
  // As bare as a machine may be; it looks through the whole disk.
  const env = { PATH: `${at}:/usr/bin:/bin` }
  writeFileSync(join(at, 'find'), '#!/bin/sh\n', { mode: 0o755 })
  const run = () => spawnSync(join(at, 'run.sh'), { encoding: 'utf8', env })

  writeFileSync(join(at, FILE), compressed)
  const refused = run()
  t.is(refused.status, 1)
  t.notRegex(refused.stdout, /started/)

  writeFileSync(join(at, FILE), Buffer.concat([compressed, checksum(compressed)]))
  for (const time of ['first', 'second']) {
    const { status, stdout, stderr } = run()
    t.deepEqual([status, stderr], [0, ''], time)
    t.true(stdout.includes(`started ${join(at, 'unpacked', 'run.mjs')}`), stdout)
  }
})
