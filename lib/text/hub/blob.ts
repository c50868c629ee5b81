// Downloads one file's content into its blob.
//
//     lock -> what is there already is hashed -> ask for the rest -> hash and write each piece -> compare the sum -> rename
//
// Content is named by its sum, so what an earlier call left behind is always a beginning of the same bytes, or wrong, which the sum shows: then it is fetched
// once more from the start. The incomplete file has a name of this package: huggingface_hub's own would not notice a second writer.
//
// A process that was suspended may have lost its lock, and its open file may by now be the blob that another process has finished. So the lock is checked again
// before the file is truncated, and before each write after a retry.
import { createHash, type Hash } from 'node:crypto'
import { type FileHandle, mkdir, open, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'

import { type HubAnswer, type HubClient, passing, Stopped } from './client.js'
import { blobPath, ioError, lockFolder, sizeOf } from './layout.js'
import { HubLock } from './lock.js'
import type { Meter } from './meter.js'
import { corrupt } from './name.js'
import { fileUrl, type HubFile } from './tree.js'

/** The number of times that content may be wrong, from the start. */
const WRONG_MAX = 2
const PIECE_BYTES = 2 ** 20

const incompleteOf = (blob: string): string => `${blob}.kvtide.incomplete`

/** @internal The bytes of a file that an earlier call left behind. */
export async function bytesThere(client: HubClient, { sum, size }: HubFile): Promise<number> {
  const found = (await sizeOf(incompleteOf(blobPath(client.settings, sum)))) ?? 0
  return found > size ? 0 : found
}

/** @internal Returns the path of a file's blob, which is downloaded unless it is there. */
export async function fetchBlob(client: HubClient, commit: string, file: HubFile, meter: Meter): Promise<string> {
  const { settings } = client
  const blob = blobPath(settings, file.sum)
  const isThere = async (): Promise<boolean> => (await sizeOf(blob)) === file.size
  if (await isThere()) {
    meter.at(file, file.size)
    return blob
  }
  await mkdir(dirname(blob), { recursive: true }).catch(error => {
    throw ioError('write', dirname(blob), error)
  })
  for (;;) {
    const lock = await HubLock.take(
      join(lockFolder(settings), `${file.sum}.kvtide.lock`),
      settings.limits.lockMs,
      async () => {
        client.checkSignal()
        if (await isThere()) return true
        meter.at(file, await bytesThere(client, file))
        return false
      },
    )
    try {
      const isDone =
        lock === undefined || (await isThere()) || (await new Writer(client, commit, file, meter, lock).write())
      if (!isDone) continue
      meter.at(file, file.size)
      return blob
    } finally {
      await lock?.release()
    }
  }
}

/** Thrown in a download whose lock another process has taken over. {@link HubClient.timed} passes it on as it is. */
class LockLost extends Stopped {
  override readonly error: unknown = this

  constructor() {
    super(undefined)
  }
}

/** Writes one blob. */
class Writer {
  readonly #client: HubClient
  readonly #commit: string
  readonly #file: HubFile
  readonly #meter: Meter
  readonly #path: string
  readonly #blob: string
  readonly #lock: HubLock
  #hash: Hash
  #offset = 0
  /** The largest offset so far: only bytes beyond it are progress. */
  #best = 0
  /** True after the first request for the content. */
  #isRetry = false

  constructor(client: HubClient, commit: string, file: HubFile, meter: Meter, lock: HubLock) {
    this.#client = client
    this.#commit = commit
    this.#file = file
    this.#meter = meter
    this.#lock = lock
    this.#blob = blobPath(client.settings, file.sum)
    this.#path = incompleteOf(this.#blob)
    this.#hash = this.#empty()
  }

  /** Downloads the content and gives it its name. False if another process has taken over. */
  async write(): Promise<boolean> {
    const handle = await open(this.#path, 'a+').then(
      async made => {
        await made.close()
        return open(this.#path, 'r+')
      },
      (error: unknown) => {
        throw ioError('write', this.#path, error)
      },
    )
    try {
      await this.#resume(handle)
      await this.#whole(handle)
      await handle.datasync().catch(error => {
        throw ioError('write', this.#path, error)
      })
    } catch (error) {
      if (error instanceof LockLost) return false
      throw error
    } finally {
      await handle.close()
    }
    if (!(await this.#lock.isHeld())) return false
    await rename(this.#path, this.#blob).catch(async error => {
      if ((await sizeOf(this.#blob)) !== this.#file.size) throw ioError('write', this.#blob, error)
      await rm(this.#path, { force: true })
    })
    return true
  }

  /** Throws {@link LockLost} if another process has taken over. */
  async #checkLock(): Promise<void> {
    if (!(await this.#lock.isHeld())) throw new LockLost()
  }

  #empty(): Hash {
    const { sum, size } = this.#file
    return sum.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`)
  }

  /** Hashes what is there already. */
  async #resume(handle: FileHandle): Promise<void> {
    const { size } = await handle.stat()
    if (size > this.#file.size) return this.#restart(handle)
    const piece = Buffer.alloc(Math.min(PIECE_BYTES, size))
    while (this.#offset < size) {
      this.#client.checkSignal()
      const { bytesRead } = await handle.read(piece, 0, piece.length, this.#offset)
      if (bytesRead === 0) break
      this.#hash.update(piece.subarray(0, bytesRead))
      this.#offset += bytesRead
    }
    this.#meter.at(this.#file, this.#offset)
  }

  async #restart(handle: FileHandle): Promise<void> {
    await this.#checkLock()
    await handle.truncate(0).catch(error => {
      throw ioError('write', this.#path, error)
    })
    this.#hash = this.#empty()
    this.#offset = 0
    this.#meter.at(this.#file, 0)
  }

  /** Downloads until the sum is right. Content that was resumed and is wrong does not count: the other part may have been. */
  async #whole(handle: FileHandle): Promise<void> {
    let [wrong, isResumed] = [0, this.#offset > 0]
    for (;;) {
      await this.#rest(handle)
      const found = this.#hash.digest('hex')
      if (found === this.#file.sum) return
      await this.#restart(handle)
      wrong += isResumed ? 0 : 1
      isResumed = false
      if (wrong >= WRONG_MAX) {
        await rm(this.#path, { force: true })
        throw corrupt(
          `the content of ${this.#file.path}`,
          found,
          `the sum ${this.#file.sum}: the Hub or a proxy sent other bytes`,
        )
      }
    }
  }

  /** Downloads what is missing. */
  async #rest(handle: FileHandle): Promise<void> {
    const { size } = this.#file
    if (this.#offset === size) return
    const client = this.#client
    await client.attempts(client.settings.limits.attempts, progressed =>
      client.timed(async (signal, alive) => {
        const isRetry = this.#isRetry
        this.#isRetry = true
        const range: Readonly<Record<string, string>> = this.#offset > 0 ? { range: `bytes=${this.#offset}-` } : {}
        const answer = await client.get(fileUrl(client, this.#commit, this.#file.path), signal, range)
        if (!this.#continues(answer)) await this.#restart(handle)
        if (answer.response.status === 416) throw passing('it has fewer bytes of the file than it said')
        for await (const piece of client.body(answer.response, signal, alive)) {
          if (this.#offset + piece.length > size) {
            await this.#restart(handle)
            throw passing('its answer is longer than the file')
          }
          if (isRetry) await this.#checkLock()
          await this.#put(handle, piece)
          if (this.#offset > this.#best) {
            this.#best = this.#offset
            progressed()
          }
        }
        if (this.#offset < size) throw passing(`the connection ended after ${this.#offset} of ${size} bytes`)
      }),
    )
  }

  /** True if an answer starts where the file ends. */
  #continues({ response, first }: HubAnswer): boolean {
    const named = sumIn(first)
    if (named !== undefined && named !== this.#file.sum)
      throw corrupt(`the sum of ${this.#file.path} in the answer`, named, this.#file.sum)
    if (this.#offset === 0) {
      if (response.status === 206) throw passing('it answers with a part that was not asked for')
      return true
    }
    const encoding = response.headers.get('content-encoding') ?? 'identity'
    const start = /^bytes (\d+)-/.exec(response.headers.get('content-range') ?? '')?.[1]
    if (response.status !== 206 || Number(start) === 0) return false
    if (encoding !== 'identity' || Number(start) !== this.#offset)
      throw passing('it answers with another part than was asked for')
    return true
  }

  async #put(handle: FileHandle, piece: Uint8Array): Promise<void> {
    try {
      for (let written = 0; written < piece.length;)
        written += (await handle.write(piece, written, piece.length - written, this.#offset + written)).bytesWritten
    } catch (error) {
      throw ioError('write', this.#path, error)
    }
    this.#hash.update(piece)
    this.#offset += piece.length
    try {
      this.#meter.at(this.#file, this.#offset)
    } catch (error) {
      throw new Stopped(error)
    }
  }
}

/** The sum that the Hub's own headers name, if they name one. */
function sumIn(headers: Headers): string | undefined {
  const text = (headers.get('x-linked-etag') ?? headers.get('etag') ?? '').replace(/^W\//, '').replaceAll('"', '')
  return /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(text) ? text : undefined
}
