// Prefix keys: the one of a variable, and the one in the file `prefix-key` of a folder.
//
//     temporary file, 0600 -> fsync -> link to `prefix-key` -> remove the temporary file -> fsync of the folder
//
// The file gets its name after its bytes are on the disk, and the name is never replaced. So several processes that start on a new folder use the key of the first
// one, and a process that is killed leaves a whole file or none. On a file system without links, the file is written in place.
import { randomBytes } from 'node:crypto'
import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'

import { shown } from '../refusal.js'
import { reasonOf, WrongFlag } from './flags.js'

/** Reads 32 bytes from a variable with 64 hexadecimal digits. */
export function secretOf(variable: string, env: NodeJS.ProcessEnv = process.env): Uint8Array | undefined {
  const value = env[variable]
  if (value === undefined || value === '') return undefined
  if (!/^[\da-f]{64}$/i.test(value))
    throw new WrongFlag(`${variable} must have 64 hexadecimal digits, as openssl rand -hex 32 prints`)
  return Buffer.from(value, 'hex')
}

/** Returns the prefix key of a folder, and makes it if there is none. It lies beside the blocks, which contain the prompts in clear. */
export function keyOfFolder(folder: string): Uint8Array {
  const path = join(folder, 'prefix-key')
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    if (!existsSync(path)) makeKey(folder, path)
  } catch (error) {
    throw new WrongFlag(`--disk must be a folder, got ${shown(folder)}: ${reasonOf(error)}`)
  }
  const found = secretOf('prefix-key', { 'prefix-key': readFileSync(path, 'utf8').trim() })
  if (found === undefined)
    throw new WrongFlag(`${path} is empty, expected 64 hexadecimal digits: remove it, and the next start makes a key`)
  return found
}

/** Writes a new prefix key into a folder, and warns if the folder has blocks of an earlier key. */
function makeKey(folder: string, path: string): void {
  const key = randomBytes(32).toString('hex')
  const temporary = `${path}.${process.pid}-${randomBytes(4).toString('hex')}`
  try {
    write(temporary, key)
    linkTo(temporary, path, key)
  } catch (error) {
    // Another process was faster: its key is used.
    if (codeOf(error) === 'EEXIST') return
    throw error
  } finally {
    rmSync(temporary, { force: true })
  }
  syncFolder(folder)
  const blocks = join(folder, 'blocks')
  if (existsSync(blocks) && readdirSync(blocks).length > 0)
    console.error(
      `warning: ${folder} has blocks but no file prefix-key: blocks of the old key cannot be used, and a new key was made`,
    )
}

/** Writes a new file, and waits until its bytes are on the disk. */
function write(path: string, text: string): void {
  const file = openSync(path, 'wx', 0o600)
  try {
    writeFileSync(file, text)
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}

/** Errors of file systems that have no links. */
const WITHOUT_LINKS: ReadonlySet<string> = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK'])

/** Gives a file a second name, which must be free. */
function linkTo(temporary: string, path: string, key: string): void {
  try {
    linkSync(temporary, path)
  } catch (error) {
    if (!WITHOUT_LINKS.has(codeOf(error))) throw error
    write(path, key)
  }
}

/** Waits until the names in a folder are on the disk, where the system can open folders. */
function syncFolder(folder: string): void {
  let opened: number | undefined
  try {
    opened = openSync(folder, 'r')
    fsyncSync(opened)
  } catch {
    // Windows opens no folders, and some file systems cannot sync them.
  } finally {
    if (opened !== undefined) closeSync(opened)
  }
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? ''
}
