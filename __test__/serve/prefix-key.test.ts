// The prefix key of a folder: one key for all processes, and no file that a later start refuses.
import { spawn } from 'node:child_process'
import fs, { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { keyOfFolder } from '../../packages/serve/lib/command/prefix-key.js'

function scratch(t: ExecutionContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-key-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

const hex = (key: Uint8Array): string => Buffer.from(key).toString('hex')

/** Runs something while a function of `fs` is another one. */
function replaced<T>(name: 'fsyncSync' | 'linkSync', by: (...args: never[]) => void, run: () => T): T {
  const own = fs[name]
  Object.assign(fs, { [name]: by })
  syncBuiltinESMExports()
  try {
    return run()
  } finally {
    Object.assign(fs, { [name]: own })
    syncBuiltinESMExports()
  }
}

const failing = (code: string) => (): never => {
  throw Object.assign(new Error(`${code}: a disk of a test`), { code })
}

test('a new folder gets a key that later starts read, for its owner alone', t => {
  const folder = join(scratch(t), 'new', 'disk')
  const key = keyOfFolder(folder)
  t.is(key.length, 32)
  t.deepEqual(keyOfFolder(folder), key)
  t.deepEqual(readdirSync(folder), ['prefix-key'])
  t.is(readFileSync(join(folder, 'prefix-key'), 'utf8'), hex(key))
  t.is(statSync(join(folder, 'prefix-key')).mode & 0o777, 0o600)
  t.not(hex(keyOfFolder(join(scratch(t), 'other'))), hex(key))
})

test.serial('a key that does not reach the disk leaves no file, and the next start makes one', t => {
  const folder = scratch(t)
  const error = replaced('fsyncSync', failing('EIO'), () => t.throws(() => keyOfFolder(folder)))
  t.regex(error?.message ?? '', /EIO/)
  t.deepEqual(readdirSync(folder), [])
  t.is(keyOfFolder(folder).length, 32)
})

test.serial('the key of another process that was faster is used', t => {
  const folder = scratch(t)
  const { linkSync } = fs
  const other = 'ab'.repeat(32)
  const faster = (from: string, to: string): void => {
    writeFileSync(to, other)
    linkSync(from, to)
  }
  t.is(hex(replaced('linkSync', faster as never, () => keyOfFolder(folder))), other)
  t.deepEqual(readdirSync(folder), ['prefix-key'])
})

test.serial('a file system without links has a key as well', t => {
  for (const code of ['EPERM', 'ENOTSUP']) {
    const folder = scratch(t)
    const key = replaced('linkSync', failing(code), () => keyOfFolder(folder))
    t.deepEqual([readdirSync(folder), keyOfFolder(folder)], [['prefix-key'], key])
    t.is(statSync(join(folder, 'prefix-key')).mode & 0o777, 0o600)
  }
})

test('an empty file of a key says what to do, and stays', t => {
  const folder = scratch(t)
  const path = join(folder, 'prefix-key')
  writeFileSync(path, '')
  const { message } = t.throws(() => keyOfFolder(folder)) ?? { message: '' }
  t.true(message.startsWith(`${path} is empty, expected 64 hexadecimal digits: remove it`), message)
  t.is(readFileSync(path, 'utf8'), '')
})

test('processes that start at once on new folders have the same keys', async t => {
  const folder = scratch(t)
  const rounds = 200
  const program = `
    import { keyOfFolder } from './packages/serve/lib/command/prefix-key.ts'
    const keys = []
    process.stdout.write('ready\\n')
    process.stdin.once('data', () => {
      for (let round = 0; round < ${rounds}; round++) keys.push(Buffer.from(keyOfFolder(process.argv[1] + '/' + round)).toString('hex'))
      process.stdout.write(keys.join(','))
      process.stdin.destroy()
    })`
  const children = Array.from({ length: 4 }, () => {
    const child = spawn(process.execPath, ['--import=tsx', '--input-type=module', '-e', program, folder])
    t.teardown(() => child.kill('SIGKILL'))
    let [output, errors] = ['', '']
    child.stderr.on('data', part => (errors += String(part)))
    const ready = new Promise<void>(resolve =>
      child.stdout.on('data', part => {
        output += String(part)
        if (output.startsWith('ready')) resolve()
      }),
    )
    const ended = new Promise<string>(resolve => child.on('close', () => resolve(errors + output)))
    return { child, ready: Promise.race([ready, ended]), ended }
  })
  await Promise.all(children.map(({ ready }) => ready))
  for (const { child } of children) child.stdin.write('go')
  const outputs = await Promise.all(children.map(({ ended }) => ended))
  t.is(new Set(outputs).size, 1)
  t.is((outputs[0] ?? '').replace('ready\n', '').split(',').length, rounds)
  for (let round = 0; round < rounds; round++) t.deepEqual(readdirSync(join(folder, String(round))), ['prefix-key'])
})
