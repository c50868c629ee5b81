import type { NativeSave } from '#binding'

import { known } from '../border/check.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { FILE, type GivenFileOptions, watched, whenFree } from './progress.js'
import { readPath } from './source.js'

/** @internal Saves in a file, and answers how many bytes it has. `shared` is the cache whose blocks may make room meanwhile. */
export async function saveFile(shared: SharedCache | undefined, begin: () => NativeSave, path: unknown, options: unknown): Promise<number> {
  const file = readPath('path', path)
  return run(shared, begin, file, options, async save => save.finish())
}

/** @internal Saves as bytes. */
export async function saveBytes(shared: SharedCache | undefined, begin: () => NativeSave, options: unknown): Promise<Uint8Array> {
  return run(shared, begin, undefined, options, async save => {
    await save.finish()
    return save.takeBytes()
  })
}

/**
 * What is saved is noted at once. Then the cache goes on while pages are written; what made room meanwhile is left out at the end. Whatever ends
 * early leaves no file.
 */
async function run<T>(shared: SharedCache | undefined, begin: () => NativeSave, path: string | undefined, options: unknown, finish: (save: NativeSave) => Promise<T>): Promise<T> {
  const given = known<GivenFileOptions>('options', options, FILE)
  return watched(given, async watch => {
    const save = await whenFree(watch, begin)
    try {
      await save.write(path, watch)
      if (shared !== undefined) save.leaveOut(shared.native)
      return await finish(save)
    } finally {
      save.dispose()
    }
  })
}
