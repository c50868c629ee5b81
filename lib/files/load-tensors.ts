// Loading a contiguous cache: options are checked before the file is opened, and the cache is made only after the whole file was verified.
import type { NativeTensorFile } from '#binding'

import { known, type Names, optional, whole } from '../errors/check.js'
import { readDevice } from '../border/process.js'
import { FILE, type FileOptions, watched } from './progress.js'
import { readSource } from './source.js'

/** Options of loading a saved cache of one layer. */
export interface LayerLoadOptions extends FileOptions {
  /** The device, `'cpu'` by default. */
  readonly device?: string
  /** The memory limit of the cache in bytes, snapshots and copies included. */
  readonly memoryLimitBytes?: number
}

const LOAD: Names<LayerLoadOptions> = { ...FILE, device: 0, memoryLimitBytes: 0 }

/** @internal Loads a cache of one layer: the file is read and verified off the main thread. */
export async function loadTensors<C>(
  kind: 'kv' | 'rotating' | 'rotating-kv' | 'rollback',
  source: unknown,
  options: unknown,
  make: (file: NativeTensorFile, device: string, limit: number | undefined) => C,
): Promise<C> {
  const { device, memoryLimitBytes, signal, onProgress } = known<LayerLoadOptions>('options', options, LOAD)
  const [on, limit] = [readDevice(device), optional(whole, 'memoryLimitBytes', memoryLimitBytes)]
  const from = readSource(source)
  return watched({ signal, onProgress }, async watch => make(await from.readTensors(kind, watch), on, limit))
}
