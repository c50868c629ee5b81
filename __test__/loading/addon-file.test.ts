// What can be told of a native library before it is loaded.
import { copyFileSync, mkdtempSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { fileProblem, libcProblem } from '../../lib/loading/addon-file.js'
import { addonPath, PLATFORM } from '../support/packaging/package-copy.js'

const here = { name: PLATFORM, system: process.platform, arch: process.arch }
const linux = { name: 'linux-x64-gnu', system: 'linux', arch: 'x64' }
const mac = { name: 'darwin-arm64', system: 'darwin', arch: 'arm64' }
const windows = { name: 'win32-x64-msvc', system: 'win32', arch: 'x64' }

/** A file that is gone when the test ends. */
function file(t: ExecutionContext, content: Buffer | string): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-addon-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  writeFileSync(join(folder, 'kvtide.node'), content)
  return join(folder, 'kvtide.node')
}

/** A library for Linux of 200 bytes: a head, and 2 sections of 64 bytes at 72. */
function elf(machine: number): Buffer {
  const bytes = Buffer.alloc(200)
  bytes.write('\x7fELF\x02\x01', 'latin1')
  bytes.writeUInt16LE(machine, 18)
  bytes.writeBigUInt64LE(72n, 40)
  bytes.writeUInt16LE(64, 58)
  bytes.writeUInt16LE(2, 60)
  return bytes
}

/** A library for macOS of 300 bytes: two commands, of which the second is a segment of 100 bytes at 200. */
function machO(processor: number): Buffer {
  const bytes = Buffer.alloc(300)
  for (const [at, value] of [
    [0, 0xfeedfacf],
    [4, processor],
    [16, 2],
    [32, 2],
    [36, 24],
    [56, 0x19],
    [60, 72],
  ] as const)
    bytes.writeUInt32LE(value, at)
  bytes.writeBigUInt64LE(200n, 56 + 40)
  bytes.writeBigUInt64LE(100n, 56 + 48)
  return bytes
}

/** A library for Windows of 400 bytes: one section of 100 bytes at 300. */
function portableExecutable(machine: number): Buffer {
  const bytes = Buffer.alloc(400)
  bytes.write('MZ', 'latin1')
  bytes.writeUInt32LE(64, 60)
  bytes.write('PE', 64, 'latin1')
  for (const [at, value] of [
    [68, machine],
    [70, 1],
    [84, 16],
  ] as const)
    bytes.writeUInt16LE(value, at)
  bytes.writeUInt32LE(100, 64 + 24 + 16 + 16)
  bytes.writeUInt32LE(300, 64 + 24 + 16 + 20)
  return bytes
}

test('the addon of this platform can be tried, and no part of it', t => {
  t.is(fileProblem(addonPath, here), undefined)
  const copy = file(t, '')
  copyFileSync(addonPath, copy)
  const { size } = statSync(copy)
  for (const left of [size - 1, size >> 1, 16384, 4000, 63, 0]) {
    truncateSync(copy, left)
    t.regex(fileProblem(copy, here) ?? '', /^it is truncated/, String(left))
  }
})

test('libraries for each system are known, whole or cut short', t => {
  const libraries = [
    [linux, elf(0x3e), 200],
    [mac, machO(0x0100000c), 300],
    [windows, portableExecutable(0x8664), 400],
  ] as const
  for (const [platform, bytes, length] of libraries) {
    t.is(fileProblem(file(t, bytes), platform), undefined, platform.name)
    t.is(
      fileProblem(file(t, bytes.subarray(0, length - 1)), platform),
      `it is truncated: it has ${length - 1} of ${length} bytes`,
    )
    for (const other of [linux, mac, windows].filter(of => of !== platform)) {
      t.is(fileProblem(file(t, bytes), other), `it is for ${platform.system}-${platform.arch}, this is ${other.name}`)
    }
  }
})

test('libraries for another processor are told so', t => {
  t.is(fileProblem(file(t, elf(0xb7)), linux), 'it is for linux-arm64, this is linux-x64-gnu')
  t.is(fileProblem(file(t, elf(8)), linux), 'it is for linux-machine 8, this is linux-x64-gnu')
  t.is(fileProblem(file(t, machO(0x01000007)), mac), 'it is for darwin-x64, this is darwin-arm64')
  t.is(fileProblem(file(t, portableExecutable(0xaa64)), windows), 'it is for win32-arm64, this is win32-x64-msvc')
  const narrow = elf(3)
  narrow[4] = 1
  t.is(fileProblem(file(t, narrow), linux), 'it is for linux-another word size, this is linux-x64-gnu')
  const universal = Buffer.alloc(100)
  universal.writeUInt32BE(0xcafebabe)
  t.is(fileProblem(file(t, universal), mac), undefined)
})

test('what is no library is told so', t => {
  t.is(fileProblem(file(t, 'not a library'), linux), 'it is not a native library')
  t.is(
    fileProblem(file(t, Buffer.concat([Buffer.from('MZ'), Buffer.alloc(200)])), windows),
    'it is not a native library',
  )
  t.is(fileProblem(file(t, 'MZ'), windows), 'it is truncated: its header is incomplete')
  t.is(
    fileProblem(file(t, portableExecutable(0x8664).subarray(0, 66)), windows),
    'it is truncated: its header is incomplete',
  )
  t.throws(() => fileProblem('/nowhere/kvtide.node', linux), { code: 'ENOENT' })
})

test('a head that is larger than what is looked at can be tried', t => {
  const bytes = Buffer.alloc(20000)
  machO(0x0100000c).copy(bytes)
  bytes.writeUInt32LE(16380, 60)
  bytes.writeUInt32LE(3, 16)
  t.is(fileProblem(file(t, bytes), mac), undefined)
})

test('a library of the other libc is told so, once the system has refused it', t => {
  const musl = { ...linux, name: 'linux-x64-musl' }
  const refused = 'Error loading shared library libc.so.6: No such file or directory'
  t.is(libcProblem(file(t, 'NEEDED libc.so.6'), refused, musl), 'it is for glibc, this system has musl')
  t.is(
    libcProblem(
      file(t, 'NEEDED libc.musl-x86_64.so.1'),
      'libc.musl-x86_64.so.1: cannot open shared object file',
      linux,
    ),
    'it is for musl, this system has glibc',
  )
  t.is(
    libcProblem(
      file(t, 'NEEDED libc.so.6'),
      "/lib/libc.so.6: version `GLIBC_2.38' not found (required by kvtide.node)",
      linux,
    ),
    'it needs glibc 2.38 or later, which this system does not have',
  )
  t.is(libcProblem(file(t, 'NEEDED libc.so.6'), 'no idea', linux), undefined)
  t.is(libcProblem('/nowhere', 'no idea', mac), undefined)
})
