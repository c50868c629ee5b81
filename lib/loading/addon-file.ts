// Checks a native library by its first bytes before it is loaded. A truncated library must not be loaded: the system maps pages that the file does
// not have, and reading one crashes the process. Costs one read of 16 KiB.
import { readFileSync } from 'node:fs'

import { readRegular } from './regular-file.js'
import type { Platform } from './platform.js'

const HEAD_BYTES = 16384

/** A native library, as its header describes it. */
interface Library {
  readonly system: string
  readonly arch: string
  /** The minimum length of the file. */
  readonly bytes: number
}

/** Returns the reason why a file cannot be loaded on this platform, as far as its header tells; `undefined` if loading can be tried. */
export function fileProblem(file: string, here: Platform): string | undefined {
  const { head, bytes } = readRegular(file, HEAD_BYTES)
  let library: Library | undefined
  try {
    library = libraryOf(head)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    return bytes < HEAD_BYTES ? 'it is truncated: its header is incomplete' : undefined
  }
  if (library === undefined) return 'it is not a native library'
  const { system, arch } = library
  if (system !== here.system || (arch !== here.arch && arch !== 'any'))
    return `it is for ${system}-${arch}, this is ${here.name}`
  if (bytes < library.bytes) return `it is truncated: it has ${bytes} of ${library.bytes} bytes`
  return undefined
}

/** Returns the libc mismatch that made the system refuse to load a library, if there is one; `said` is the system's message. */
export function libcProblem(file: string, said: string, here: Platform): string | undefined {
  if (here.system !== 'linux') return undefined
  const newer = /GLIBC_([\d.]+)' not found/.exec(said)
  if (newer !== null) return `it needs glibc ${newer[1]} or later, which this system does not have`
  const bytes = readFileSync(file)
  const forMusl = bytes.includes('libc.musl-') || bytes.includes('ld-musl-')
  if (forMusl && here.name.endsWith('-gnu')) return 'it is for musl, this system has glibc'
  if (!forMusl && bytes.includes('libc.so.6') && here.name.endsWith('-musl'))
    return 'it is for glibc, this system has musl'
  return undefined
}

/** Reads the header of a library. Throws a `RangeError` if a field lies behind the bytes that were read. */
function libraryOf(head: Buffer): Library | undefined {
  if (head.readUInt32BE(0) === 0x7f454c46) return elf(head)
  if (head.readUInt32LE(0) === 0xfeedfacf) return machO(head)
  if (head.readUInt32BE(0) === 0xcafebabe) return { system: 'darwin', arch: 'any', bytes: 0 }
  if (head.readUInt16BE(0) === 0x4d5a) return portableExecutable(head)
  return undefined
}

const archOf = (known: Readonly<Record<number, string>>, machine: number): string =>
  known[machine] ?? `machine ${machine}`

/** Linkers put the section table at the very end of the file, and `strip` leaves it there. */
function elf(head: Buffer): Library {
  if (head[4] !== 2 || head[5] !== 1) return { system: 'linux', arch: 'another word size', bytes: 0 }
  const sections = Number(head.readBigUInt64LE(40)) + head.readUInt16LE(58) * head.readUInt16LE(60)
  return { system: 'linux', arch: archOf({ 0x3e: 'x64', 0xb7: 'arm64' }, head.readUInt16LE(18)), bytes: sections }
}

const LC_SEGMENT_64 = 0x19

function machO(head: Buffer): Library {
  let bytes = 0
  for (let at = 32, left = head.readUInt32LE(16); left > 0; left--) {
    if (head.readUInt32LE(at) === LC_SEGMENT_64) {
      bytes = Math.max(bytes, Number(head.readBigUInt64LE(at + 40) + head.readBigUInt64LE(at + 48)))
    }
    at += head.readUInt32LE(at + 4)
  }
  return { system: 'darwin', arch: archOf({ 0x01000007: 'x64', 0x0100000c: 'arm64' }, head.readUInt32LE(4)), bytes }
}

function portableExecutable(head: Buffer): Library | undefined {
  const at = head.readUInt32LE(0x3c)
  if (head.readUInt32BE(at) !== 0x50450000) return undefined
  const table = at + 24 + head.readUInt16LE(at + 20)
  let bytes = 0
  for (let section = table, left = head.readUInt16LE(at + 6); left > 0; left--, section += 40) {
    bytes = Math.max(bytes, head.readUInt32LE(section + 16) + head.readUInt32LE(section + 20))
  }
  return { system: 'win32', arch: archOf({ 0x8664: 'x64', 0xaa64: 'arm64' }, head.readUInt16LE(at + 4)), bytes }
}
