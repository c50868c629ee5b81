// A lock between processes: one download writes a blob, the others wait for it. The lock is a file that only its maker can create; a sign of life every few
// seconds is its time. A waiting process takes it over if its owner is gone: at once if that ran on this system, else when its time has not changed for a while,
// by the waiter's own clock, so that clocks of other machines don't matter.
//
// The lock saves traffic, no more: two owners at once (a laptop that slept) write the same bytes to the same places, and only the one that still has the lock
// gives the blob its name. An owner checks that it still has the lock before it truncates the file, and before each write after a retry.
import { randomBytes } from 'node:crypto'
import { readFileSync, readlinkSync } from 'node:fs'
import { mkdir, open, readFile, rename, rm, stat, utimes } from 'node:fs/promises'
import { hostname } from 'node:os'
import { dirname } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'

import { ioError } from './layout.js'

interface Owner {
  readonly id: string
  readonly pid: number
  readonly system: string
}

/** Processes whose ids can be compared: those of one boot and, on Linux, of one namespace of ids. Containers may share a host name. */
function systemHere(): string {
  if (process.platform !== 'linux') return `${process.platform} ${hostname()}`
  try {
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()} ${readlinkSync('/proc/self/ns/pid')}`
  } catch {
    return randomBytes(8).toString('hex')
  }
}

let here: string | undefined

/** @internal A lock that this process has. */
export class HubLock {
  readonly #file: string
  readonly #id: string
  readonly #timer: NodeJS.Timeout

  private constructor(file: string, id: string, lockMs: number) {
    this.#file = file
    this.#id = id
    this.#timer = setInterval(() => {
      const now = new Date()
      utimes(file, now, now).catch(() => undefined)
    }, lockMs / 5)
    this.#timer.unref()
  }

  /** Waits for a lock. `waiting` is called in each round, and ends the wait with `undefined` if it returns true. */
  static async take(file: string, lockMs: number, waiting: () => Promise<boolean>): Promise<HubLock | undefined> {
    await mkdir(dirname(file), { recursive: true }).catch(error => {
      throw ioError('write', dirname(file), error)
    })
    const watch: Watch = { seen: '', sinceMs: 0 }
    for (;;) {
      const id = await created(file)
      if (id !== undefined) return new HubLock(file, id, lockMs)
      if (await waiting()) return undefined
      await giveWay(file, watch, lockMs)
      await pause(Math.min(100, lockMs / 10))
    }
  }

  /** True if no other process has taken it over. */
  async isHeld(): Promise<boolean> {
    return (await ownerOf(this.#file))?.id === this.#id
  }

  async release(): Promise<void> {
    clearInterval(this.#timer)
    if (await this.isHeld()) await rm(this.#file, { force: true }).catch(() => undefined)
  }
}

/** Creates the file of a lock, and returns its owner's id; `undefined` if there is one. */
async function created(file: string): Promise<string | undefined> {
  try {
    const handle = await open(file, 'wx')
    try {
      const owner: Owner = { id: randomBytes(8).toString('hex'), pid: process.pid, system: (here ??= systemHere()) }
      await handle.writeFile(JSON.stringify(owner))
      return owner.id
    } finally {
      await handle.close()
    }
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // On Windows, a file that is being removed refuses with EPERM for a moment.
    if (code === 'EEXIST' || (code === 'EPERM' && process.platform === 'win32')) return undefined
    throw ioError('write', file, error)
  }
}

async function ownerOf(file: string): Promise<Owner | undefined> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Owner
  } catch {
    return undefined
  }
}

interface Watch {
  /** The owner and the time of the lock when it last changed. */
  seen: string
  sinceMs: number
}

/** Removes a lock whose owner is gone. */
async function giveWay(file: string, watch: Watch, lockMs: number): Promise<void> {
  const owner = await ownerOf(file)
  const found = await stat(file).catch(() => undefined)
  if (found === undefined) return
  const seen = `${owner?.id} ${found.mtimeMs}`
  if (seen !== watch.seen) Object.assign(watch, { seen, sinceMs: performance.now() })
  const isSilent = performance.now() - watch.sinceMs > lockMs
  if (!isSilent && !isGone(owner)) return
  // Only one of those that wait can rename it. If it was a newer lock, there are two owners, which is no harm.
  const gone = `${file}.${randomBytes(4).toString('hex')}`
  await rename(file, gone).catch(() => undefined)
  await rm(gone, { force: true }).catch(() => undefined)
}

/** True if the owner ran on this system and has ended. */
function isGone(owner: Owner | undefined): boolean {
  if (owner === undefined || owner.system !== (here ??= systemHere())) return false
  try {
    process.kill(owner.pid, 0)
    return false
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH'
  }
}
