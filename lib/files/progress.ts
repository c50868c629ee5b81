// Options of saves and loads: progress, which is read from the addon every 50 ms, and a signal that aborts them. An error that `onProgress` throws ends the
// work, and is the error of the call.
import type { NativeWatch } from '#binding'

import type { Names } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { type AsyncOptions, StopSignal } from '../border/stop-signal.js'
import { whenFree as untilFree } from '../border/when-free.js'
import { binding } from '../loading/binding.js'

/** The progress of a save or a load. */
export interface Progress {
  /** Bytes of pages that are done. */
  readonly doneBytes: number
  /** Bytes of pages in all. */
  readonly totalBytes: number
}

/** Options of saves and loads. */
export interface FileOptions extends AsyncOptions {
  /** Called on the main thread, at most twenty times a second and once at the end. If it throws, the work ends with that error. */
  readonly onProgress?: (progress: Progress) => void
}

/** @internal The options of a save or a load, as the caller gave them. */
export type GivenFileOptions = { readonly [Name in keyof FileOptions]?: unknown }

/** @internal */
export const FILE: Names<FileOptions> = { signal: 0, onProgress: 0 }

const EVERY_MS = 50

/** @internal Makes a call once no background call uses the cache, unless the signal aborts the wait. */
export async function whenFree<T>(watch: NativeWatch, call: () => T): Promise<T> {
  return untilFree(call, () => {
    watch.check()
    return true
  }) as Promise<T>
}

/** @internal Runs background work that reports its progress and that a signal can abort. */
export async function watched<T>(
  { signal, onProgress }: GivenFileOptions,
  work: (watch: NativeWatch) => Promise<T>,
): Promise<T> {
  if (onProgress !== undefined && typeof onProgress !== 'function')
    throw invalid('onProgress', onProgress, 'a function')
  const report = onProgress as FileOptions['onProgress']
  return StopSignal.guard(signal, async stop => {
    const flag = stop?.native ?? new binding.NativeStop()
    const watch = new binding.NativeWatch(flag)
    if (report === undefined) return work(watch)
    let last = -1
    let thrown: { readonly error: unknown } | undefined
    const tell = (): void => {
      const [doneBytes, totalBytes] = watch.progress() as [number, number]
      if (doneBytes === last || thrown !== undefined) return
      last = doneBytes
      try {
        report({ doneBytes, totalBytes })
      } catch (error) {
        thrown = { error }
        flag.stop()
      }
    }
    const timer = setInterval(tell, EVERY_MS)
    try {
      const done = await work(watch)
      tell()
      if (thrown !== undefined) throw thrown.error
      return done
    } catch (error) {
      throw thrown === undefined ? error : thrown.error
    } finally {
      clearInterval(timer)
    }
  })
}
