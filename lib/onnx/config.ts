import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { invalid } from '../border/errors.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'

/** @internal The `config.json` of a model: beside it, or one folder up; `undefined` where there is none. */
export function configBeside(model: string): string | undefined {
  const folder = dirname(model)
  return [folder, dirname(folder)].map(place => join(place, 'config.json')).find(existsSync)
}

/** @internal A file's text, or a refusal that names the file. */
export function readText(argument: string, file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw invalid(argument, file, `a file that can be read (${error instanceof Error ? error.message : String(error)})`)
  }
}

/** @internal The window of each layer as a `config.json` declares it, `null` where a layer has none. */
export function configWindows(config: string): (number | null)[] {
  // The smallest cache of the model: it knows all families, and says which layers slide.
  using cache = new PagedKvCache({ model: config, blockSize: 1, capacity: 1 })
  const windows: (number | null)[] = Array.from({ length: cache.numLayers }, () => null)
  for (const { layers, window } of cache.groups) for (const layer of layers) windows[layer] = window ?? null
  return windows
}
