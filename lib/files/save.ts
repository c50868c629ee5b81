// Saving caches and sequences to files or bytes, and loading them. This folder checks paths and options and reports progress; the addon reads and writes on other
// threads. This file saves. Contiguous caches are loaded by load-tensors.ts, paged ones and sequences by paged/load.ts.
import type { NativeSave } from '#binding'

import { known } from '../errors/check.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { FILE, type GivenFileOptions, watched, whenFree } from './progress.js'
import { readPath } from './source.js'

/** @internal Saves to a file, and returns its length in bytes. `shared` is the cache that may evict blocks meanwhile. */
export async function saveFile(
  shared: SharedCache | undefined,
  begin: () => NativeSave,
  path: unknown,
  options: unknown,
): Promise<number> {
  const file = readPath('path', path)
  return run(shared, begin, file, options, async save => save.finish())
}

/** @internal Saves to bytes. */
export async function saveBytes(
  shared: SharedCache | undefined,
  begin: () => NativeSave,
  options: unknown,
): Promise<Uint8Array> {
  return run(shared, begin, undefined, options, async save => {
    await save.finish()
    return save.takeBytes()
  })
}

/**
 * Notes what to save at once, or, if background work uses a paged cache, right before its next change. Then the cache goes on while pages are written; blocks
 * that it evicts meanwhile are left out at the end. A save that ends early leaves no file.
 */
async function run<T>(
  shared: SharedCache | undefined,
  begin: () => NativeSave,
  path: string | undefined,
  options: unknown,
  finish: (save: NativeSave) => Promise<T>,
): Promise<T> {
  const given = known<GivenFileOptions>('options', options, FILE)
  return watched(given, async watch => {
    const save = await (shared === undefined
      ? whenFree(watch, begin)
      : shared.beforeChanges(begin, () => watch.check()))
    try {
      await save.write(path, watch)
      if (shared !== undefined) save.leaveOut(shared.native)
      return await finish(save)
    } finally {
      save.dispose()
    }
  })
}
