// Loading a cache, its prefix cache, or a sequence from a file.
import type { NativeCacheFile, NativeWatch } from '#binding'

import { known, type Names } from '../errors/check.js'
import type { ModelDescription, StateTensor } from '../sequences/model-description.js'
import {
  type GivenOptions,
  type ModelCacheOptions,
  OPTION_NAMES,
  type UniformCacheOptions,
} from '../sequences/options.js'
import { PROMPT, promptOf, type PromptOptions, readPrompt } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { orDisposed } from '../border/owner.js'
import { FILE, type FileOptions, type GivenFileOptions, watched, whenFree } from '../files/progress.js'
import { readSource } from '../files/source.js'

/**
 * Options of loading a saved cache. Those that are left out are as they were saved, so none is needed. Those that are given must agree with the file: the
 * model, the form of the pages, the namespace, the prefix key. Otherwise the load throws `INCOMPATIBLE`, which names the field.
 *
 * With less capacity than was saved, the lowest-ranked blocks are skipped.
 */
export type LoadOptions = FileOptions &
  Partial<Omit<UniformCacheOptions, 'capacity' | 'device' | 'model'>> &
  Partial<Omit<ModelCacheOptions, 'model'>> & { readonly model?: ModelCacheOptions['model'] | undefined }

/** The salt and extras of the sequence to load, and the options of the load. */
export interface LoadSequenceOptions extends PromptOptions, FileOptions {}

const LOAD: Names<GivenOptions & GivenFileOptions> = { ...OPTION_NAMES, ...FILE }
/** @internal */
export const SEQUENCE: Names<LoadSequenceOptions> = { ...PROMPT, ...FILE }

/** The description of a cache in its file. */
interface Description {
  readonly identity: ModelDescription & {
    readonly namespace: string
    readonly blockSize: number
    readonly dtype: string
    readonly keyFormat: string
    readonly valueFormat: string
    readonly hadamard: boolean
    /** Absent if V is not rotated. */
    readonly valueHadamard?: boolean
    /** The states of all layers, if there are some. */
    readonly states?: readonly (StateTensor & { readonly layer: number })[]
  }
  readonly content: { readonly capacity: number[] }
}

/** @internal Creates a cache with the saved content. `make` creates an empty cache, which is disposed of if the load fails. */
export async function loadCache<C extends { dispose(): void }>(
  source: unknown,
  options: unknown,
  make: (options: GivenOptions) => { readonly cache: C; readonly shared: SharedCache },
): Promise<C> {
  const all = known<GivenOptions & GivenFileOptions>('options', options, LOAD)
  const { signal, onProgress } = all
  // Each option is read once, because a getter may return something else the next time.
  const given: GivenOptions = Object.fromEntries(
    (Object.keys(OPTION_NAMES) as (keyof GivenOptions)[]).map(name => [name, all[name]]),
  )
  const from = readSource(source)
  return watched({ signal, onProgress }, async watch => {
    const file = await from.openCache()
    const { cache, shared } = orDisposed(file, () => make(merged(JSON.parse(file.description()) as Description, given)))
    try {
      await bring(shared, file, shared.native.forgotten(), watch)
      return cache
    } catch (error) {
      cache.dispose()
      throw error
    }
  })
}

/** @internal Loads the blocks of a file into a cache, and returns their number: 0 if prefixes were forgotten meanwhile. */
export async function loadPrompts(shared: SharedCache, source: unknown, options: unknown): Promise<number> {
  const given = known<GivenFileOptions>('options', options, FILE)
  const [from, since] = [readSource(source), shared.native.forgotten()]
  return watched(given, async watch => bring(shared, await from.openCache(), since, watch))
}

async function bring(shared: SharedCache, file: NativeCacheFile, since: number, watch: NativeWatch): Promise<number> {
  try {
    const blocks = await whenFree(watch, () => shared.change(native => file.begin(native, since)))
    await file.read(watch)
    const isFound = await whenFree(watch, () => shared.change(native => file.end(native)))
    return isFound ? blocks : 0
  } finally {
    file.dispose()
  }
}

/** Merges the given options with those of the file. */
function merged({ identity, content }: Description, given: GivenOptions): GivenOptions {
  const { attention, namespace, blockSize, dtype, keyFormat, valueFormat, hadamard, valueHadamard = false } = identity
  const own = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as GivenOptions
  const isAlike = own.numLayers !== undefined
  // With another dtype, the formats differ from those of the file as well.
  const formats =
    own.dtype === undefined || own.dtype === dtype ? { keyFormat, valueFormat, hadamard, valueHadamard } : {}
  const pages = { namespace, blockSize, dtype, ...formats }
  const model =
    isAlike || own.model !== undefined
      ? {}
      : { model: { layers: layersOf(identity), ...(attention === undefined ? {} : { attention }) } }
  const capacity = own.memoryBytes === undefined ? { capacity: isAlike ? content.capacity[0] : content.capacity } : {}
  return { ...pages, ...model, ...capacity, ...own }
}

/** The layers of a file, each with its states. */
function layersOf({ layers, states = [] }: Description['identity']): ModelDescription['layers'] {
  return layers.map((layer, at) => {
    const tensors = states.filter(state => state.layer === at).map(({ name, shape, dtype }) => ({ name, shape, dtype }))
    if (layer.kind === 'state') return { kind: 'state', tensors }
    if (layer.kind === 'empty') return { kind: 'empty' }
    return tensors.length > 0 ? { ...layer, tensors } : layer
  })
}

/** @internal Creates a sequence with the saved content. Returns its number, and the ids of its tokens and of those that are to follow, if they are known. */
export async function loadSequence(
  shared: SharedCache,
  source: unknown,
  options: unknown,
  names: (prompt: PromptOptions, length: number) => PromptOptions = same => same,
): Promise<{ readonly id: number; readonly ids: Uint32Array | undefined; readonly prompt: PromptOptions }> {
  const { salt, saltFrom, extra, signal, onProgress } = known<LoadSequenceOptions>('options', options, SEQUENCE)
  const given = promptOf({ salt, saltFrom, extra })
  const [from, since] = [readSource(source), shared.native.forgotten()]
  return watched({ signal, onProgress }, async watch => {
    const file = await from.openSequence()
    try {
      const ids = file.ids() ?? undefined
      const prompt = readPrompt(names(given, ids?.length ?? 0))
      const of = [prompt.salt, prompt.saltFrom, prompt.extra] as const
      // If cached blocks would be evicted, the file is verified first, so that none are evicted for a damaged file.
      if (await whenFree(watch, () => file.check(shared.native, ...of))) await file.verify(watch)
      await whenFree(watch, () => shared.change(native => file.begin(native, since)))
      await file.read(watch)
      return { id: await whenFree(watch, () => shared.change(native => file.end(native, ...of))), ids, prompt: given }
    } finally {
      file.dispose()
    }
  })
}
