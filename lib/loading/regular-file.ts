// Opens regular files only: opening a FIFO blocks until its other end is opened, and opening a device may have any effect.
import { closeSync, constants, fstatSync, openSync, readSync, type Stats, statSync, writeFileSync } from 'node:fs'

const KINDS = [
  ['isDirectory', 'a folder'],
  ['isFIFO', 'a FIFO'],
  ['isSocket', 'a socket'],
  ['isCharacterDevice', 'a character device'],
  ['isBlockDevice', 'a block device'],
] as const

/** Windows has neither this flag nor such files. */
const NONBLOCK = (constants.O_NONBLOCK as number | undefined) ?? 0

/** Throws unless it is a regular file; the error names the kind of file. */
function check(found: Stats): void {
  if (found.isFile()) return
  const kind = KINDS.find(([is]) => found[is]())?.[1] ?? 'something else'
  throw new Error(`it is ${kind}, expected a regular file`)
}

/** Returns the first `most` bytes of a regular file, and its size. Never blocks: the kind of file is checked before it is opened, and again afterwards. */
export function readRegular(file: string, most: number): { readonly head: Buffer; readonly bytes: number } {
  check(statSync(file))
  const opened = openSync(file, constants.O_RDONLY | NONBLOCK)
  try {
    const found = fstatSync(opened)
    check(found)
    const head = Buffer.alloc(Math.min(most, found.size))
    let read = 0
    for (let more = -1; read < head.length && more !== 0; read += more)
      more = readSync(opened, head, read, head.length - read, read)
    return { head: head.subarray(0, read), bytes: found.size }
  } finally {
    closeSync(opened)
  }
}

/** Overwrites a regular file, or creates one. */
export function writeRegular(file: string, text: string): void {
  const found = statSync(file, { throwIfNoEntry: false })
  if (found !== undefined) check(found)
  const opened = openSync(file, constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | NONBLOCK)
  try {
    writeFileSync(opened, text)
  } finally {
    closeSync(opened)
  }
}
