// What is said of a built addon: read from readelf's output and from the bytes of the file.
import test from 'ava'

import { glibcVersion, machineCode, neededLibraries, ptxTargets } from '../../scripts/cuda/binary.mjs'

test('needed libraries are listed', t => {
  const dynamic = `
Dynamic section at offset 0x1f0 contains 30 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libstdc++.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libkvtide.so]
`
  t.deepEqual(neededLibraries(dynamic), ['libstdc++.so.6', 'libc.so.6'])
  t.deepEqual(neededLibraries('There is no dynamic section in this file.'), [])
})

test('the newest glibc counts, by numbers and not by letters', t => {
  const info = `
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 12
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 5
  0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 3
  0x0040:   Name: GLIBCXX_3.4.30  Flags: none  Version: 4
`
  t.is(glibcVersion(info), '2.34')
  t.is(glibcVersion('GLIBC_2.2 GLIBC_2.2.5'), '2.2.5')
  t.is(glibcVersion(''), undefined)
})

test('targets of PTX are found, each once', t => {
  const bytes = Buffer.from('\0.version 9.0\n.target sm_80\n.address_size 64\0 .target sm_90a, debug\n.target sm_80\n')
  t.deepEqual(ptxTargets(bytes), ['sm_80', 'sm_90a'])
  t.deepEqual(ptxTargets(Buffer.from('nothing')), [])
})

/** A container of nvcc's with one entry for each piece of code. */
function fatbin(...pieces: readonly { kind: number; arch: number; bytes: number }[]): Buffer {
  const entries = pieces.map(({ kind, arch, bytes }) => {
    const entry = Buffer.alloc(64 + bytes)
    entry.writeUInt16LE(kind, 0)
    entry.writeUInt32LE(64, 4)
    entry.writeBigUInt64LE(BigInt(bytes), 8)
    entry.writeUInt32LE(arch, 28)
    return entry
  })
  const header = Buffer.alloc(16)
  header.writeUInt32LE(0xba55ed50, 0)
  header.writeUInt16LE(1, 4)
  header.writeUInt16LE(16, 6)
  header.writeBigUInt64LE(BigInt(entries.reduce((sum, entry) => sum + entry.length, 0)), 8)
  return Buffer.concat([header, ...entries])
}

test('machine code is told from PTX in the same container', t => {
  const ptx = { kind: 1, arch: 120, bytes: 24 }
  const file = Buffer.concat([Buffer.alloc(5), fatbin({ kind: 2, arch: 80, bytes: 40 }, ptx), fatbin({ kind: 2, arch: 90, bytes: 8 }, { kind: 2, arch: 80, bytes: 8 })])
  t.deepEqual(machineCode(file), ['sm_80', 'sm_90'])
})

test('what only looks like a container is passed over', t => {
  const whole = fatbin({ kind: 2, arch: 80, bytes: 40 })
  t.deepEqual(machineCode(whole.subarray(0, 40)), [])
  t.deepEqual(machineCode(whole.subarray(0, 6)), [])
  t.deepEqual(machineCode(Buffer.concat([whole.subarray(0, 16), Buffer.alloc(104)])), [])
})
