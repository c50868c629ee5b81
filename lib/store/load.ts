import type { NativeCacheFile, NativeWatch } from '#binding'

import { known, type Names } from '../border/check.js'
import type { ModelDescription } from '../sequences/model-description.js'
import { type GivenOptions, type ModelCacheOptions, OPTION_NAMES, type UniformCacheOptions } from '../sequences/options.js'
import { PROMPT, promptOf, type PromptOptions, readPrompt } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { FILE, type FileOptions, type GivenFileOptions, watched, whenFree } from './progress.js'
import { readSource } from './source.js'

/**
 * How a saved cache is loaded. What is left out is as it was when it was saved: so none of this is needed. What is given has to agree with the
 * file, or else the load is `INCOMPATIBLE`, and says in which field: the model, the form of the pages, the namespace, the prefix key.
 *
 * With fewer blocks than were saved, those that would have made room first are left out.
 */
export type LoadOptions = FileOptions & Partial<Omit<UniformCacheOptions, 'capacity' | 'device' | 'model'>> & Partial<Omit<ModelCacheOptions, 'model'>> & { readonly model?: ModelCacheOptions['model'] | undefined }

/** Whose sequence is loaded, and who is told how far that is. */
export interface LoadSequenceOptions extends PromptOptions, FileOptions {}

const LOAD: Names<GivenOptions & GivenFileOptions> = { ...OPTION_NAMES, ...FILE }
const SEQUENCE: Names<LoadSequenceOptions> = { ...PROMPT, ...FILE }

/** What a file says of its cache. */
interface Description {
  readonly identity: ModelDescription & { readonly namespace: string; readonly blockSize: number; readonly dtype: string; readonly keyFormat: string; readonly valueFormat: string; readonly hadamard: boolean }
  readonly content: { readonly capacity: number[] }
}

/** @internal A new cache with what was saved: `make` makes one that is empty, and it is disposed of where the load fails. */
export async function loadCache<C extends { dispose(): void }>(source: unknown, options: unknown, make: (options: GivenOptions) => { readonly cache: C; readonly shared: SharedCache }): Promise<C> {
  const all = known<GivenOptions & GivenFileOptions>('options', options, LOAD)
  const { signal, onProgress } = all
  // Each is read once, here: what is given may answer otherwise the next time.
  const given: GivenOptions = Object.fromEntries((Object.keys(OPTION_NAMES) as (keyof GivenOptions)[]).map(name => [name, all[name]]))
  const from = readSource(source)
  return watched({ signal, onProgress }, async watch => {
    const file = await from.openCache()
    const { cache, shared } = make(merged(JSON.parse(file.description()) as Description, given))
    try {
      await bring(shared, file, watch)
      return cache
    } catch (error) {
      cache.dispose()
      throw error
    }
  })
}

/** @internal Brings what was saved to a cache, and answers how many blocks that were. */
export async function loadPrompts(shared: SharedCache, source: unknown, options: unknown): Promise<number> {
  const given = known<GivenFileOptions>('options', options, FILE)
  const from = readSource(source)
  return watched(given, async watch => bring(shared, await from.openCache(), watch))
}

async function bring(shared: SharedCache, file: NativeCacheFile, watch: NativeWatch): Promise<number> {
  try {
    const blocks = await whenFree(watch, () => shared.change(native => file.begin(native)))
    await file.read(watch)
    await whenFree(watch, () => shared.change(native => file.end(native)))
    return blocks
  } finally {
    file.dispose()
  }
}

/** The options that were given, and for the rest those of the file. */
function merged({ identity, content }: Description, given: GivenOptions): GivenOptions {
  const { layers, attention, namespace, blockSize, dtype, keyFormat, valueFormat, hadamard } = identity
  const own = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as GivenOptions
  const isAlike = own.numLayers !== undefined
  // Of another dtype the formats would not be those of the file either.
  const formats = own.dtype === undefined || own.dtype === dtype ? { keyFormat, valueFormat, hadamard } : {}
  const pages = { namespace, blockSize, dtype, ...formats }
  const model = isAlike || own.model !== undefined ? {} : { model: { layers, ...(attention === undefined ? {} : { attention }) } }
  const capacity = own.memoryBytes === undefined ? { capacity: isAlike ? content.capacity[0] : content.capacity } : {}
  return { ...pages, ...model, ...capacity, ...own }
}

/** @internal A new sequence with what was saved: its number, and the ids of its tokens and of those that are to follow, where they are known. */
export async function loadSequence(shared: SharedCache, source: unknown, options: unknown): Promise<{ readonly id: number; readonly ids: Uint32Array | undefined; readonly prompt: PromptOptions }> {
  const { salt, saltFrom, extra, signal, onProgress } = known<LoadSequenceOptions>('options', options, SEQUENCE)
  const prompt = readPrompt({ salt, saltFrom, extra })
  const of = [prompt.salt, prompt.saltFrom, prompt.extra] as const
  const from = readSource(source)
  return watched({ signal, onProgress }, async watch => {
    const file = await from.openSequence()
    try {
      // What would make room is not let go of for a file that is damaged.
      if (await whenFree(watch, () => file.check(shared.native, ...of))) await file.verify(watch)
      await whenFree(watch, () => shared.change(native => file.begin(native)))
      await file.read(watch)
      const ids = file.ids() ?? undefined
      return { id: await whenFree(watch, () => shared.change(native => file.end(native, ...of))), ids, prompt: promptOf({ salt, saltFrom, extra }) }
    } finally {
      file.dispose()
    }
  })
}
