// Models from the Hub: finds a model in the cache folder, or downloads it.
//
//     org/name@main -> commit -> complete in the cache? -> list of files -> graph of the dtype -> blobs -> snapshot -> refs/main
//
// This is written by hand on `fetch`, with nothing but node: the core package has no dependencies, and @huggingface/hub 2.17 has two, does not resume, compares no
// sum, writes one incomplete file from two processes, and downloads whole repositories. Its sister in Python resumed up to 0.36, does not since, and compares
// the length alone. The layout of the cache folder is theirs, so that each finds the other's files: see layout.
//
// With a connection, a branch costs one request when its commit is in the cache, and a commit none. When the Hub is away, or has lost the model, what the cache has
// is used, with a warning; `isOffline` asks for nothing. Memory: one piece of each of four files.
import { readFile, statfs } from 'node:fs/promises'
import { dirname, posix } from 'node:path'

import { isKvTideError, KvTideError } from '../../errors/errors.js'
import { bytesThere, fetchBlob } from './blob.js'
import { HubClient, hubUnavailable, modelNotFound } from './client.js'
import {
  companionsOf,
  configsOf,
  dataOf,
  genaiFiles,
  graphOf,
  graphsOf,
  type HubGraph,
  modelFolder,
  shownGraphs,
} from './graphs.js'
import {
  blobPath,
  commitOf,
  hubFolder,
  isPlaced,
  pathIn,
  placeFile,
  sizeOf,
  snapshotFolder,
  writeCommit,
} from './layout.js'
import { type HubModel, localModel, missingOf } from './local.js'
import { Meter } from './meter.js'
import { corrupt, isSafePath } from './name.js'
import { type DownloadOptions, type HubLimits, type HubSettings, readSettings } from './settings.js'
import { askCommit, askFiles, type HubFile } from './tree.js'

/** Files that are downloaded at the same time. */
const AT_ONCE = 4
/** Graphs beside a graph, and files with weights whose names nothing but the graph tells. */
const MORE_MAX = 10_000

/** @internal Options of {@link findModel} that only this package sets. */
export interface FindOptions {
  /** True for the tokenizer and the configs alone, without a graph. */
  readonly isText?: boolean
  readonly limits?: Partial<HubLimits>
}

/**
 * Returns the folder of a model from the Hub, in the cache folder, and downloads what is missing: configs, tokenizer, template, and one graph with its weights.
 *
 * @param name `'org/name'`, `'org/name@revision'`, or `'org/name/folder'` for a repository with several models
 *
 * @example
 * ```js
 * import { downloadModel } from 'kvtide/text'
 *
 * const folder = await downloadModel('onnx-community/Qwen3-0.6B-ONNX', {
 *   dtype: 'q4',
 *   onProgress: ({ allLoaded, allTotal }) => console.log(`${Math.floor((100 * allLoaded) / allTotal)} %`),
 * })
 * ```
 */
export async function downloadModel(name: string, options: DownloadOptions = {}): Promise<string> {
  return (await findModel(name, options)).folder
}

/** @internal Finds or downloads a model, and returns its folder and its graph. */
export async function findModel(
  name: unknown,
  options: unknown,
  { isText = false, limits }: FindOptions = {},
): Promise<HubModel> {
  const settings = readSettings(name, options, limits)
  const client = new HubClient(settings)
  client.checkSignal()
  const cached = await commitOf(settings, settings.revision)
  const local = cached === undefined ? undefined : await localModel(settings, cached, isText)
  if (settings.isOffline) {
    if (local !== undefined) return local.model
    throw hubUnavailable(settings, await whyNotCached(settings, cached))
  }
  if (local?.isComplete === true && cached === settings.revision) return local.model
  try {
    // With something to fall back to, one attempt must do.
    const commit = cached === settings.revision ? cached : await askCommit(client, local === undefined ? undefined : 1)
    const known = commit === cached ? local : await localModel(settings, commit, isText)
    const model = known?.isComplete === true ? known.model : await new Download(client, commit, isText).run()
    await writeCommit(settings, settings.revision, commit)
    return model
  } catch (error) {
    const isAway = isKvTideError(error) && (error.code === 'HUB_UNAVAILABLE' || error.code === 'MODEL_NOT_FOUND')
    if (!isAway || local === undefined) throw error
    const { reason } = error.details
    process.emitWarning(`${settings.model} is taken from the cache, at ${local.model.commit.slice(0, 12)}: ${reason}`, {
      type: 'KvTideWarning',
      code: 'KVTIDE_HUB',
    })
    return local.model
  }
}

/** The reason why a model cannot be used offline. */
async function whyNotCached(settings: HubSettings, commit: string | undefined): Promise<string> {
  const { dtype, revision } = settings
  if (commit === undefined) return `it is offline, and the cache has no ${revision} of it`
  return `it is offline, and the cache has not all of ${dtype === undefined ? 'a graph' : `a graph of ${dtype}`} of it`
}

/** The download of a commit. */
class Download {
  readonly #client: HubClient
  readonly #settings: HubSettings
  readonly #commit: string
  readonly #isText: boolean
  readonly #meter: Meter
  readonly #snapshot: string
  #files: ReadonlyMap<string, HubFile> = new Map()
  #paths: readonly string[] = []

  constructor(client: HubClient, commit: string, isText: boolean) {
    this.#client = client
    this.#settings = client.settings
    this.#commit = commit
    this.#isText = isText
    this.#meter = new Meter(client.settings.onProgress)
    this.#snapshot = snapshotFolder(client.settings, commit)
  }

  async run(): Promise<HubModel> {
    this.#files = await askFiles(this.#client, this.#commit)
    this.#paths = [...this.#files.keys()]
    const chosen = this.#choose()
    const { folder: graphFolder = this.#settings.folder ?? '' } = chosen ?? {}
    const configs = configsOf(this.#paths, graphFolder)
    const file = this.#isText ? undefined : chosen?.file
    const known = file === undefined ? [] : [...dataOf(this.#paths, file), file]
    // Configs are small: the space is checked, and the progress counted, for all that is known.
    await this.#plan([...configs, ...known])
    await this.#fetch(configs)
    const graph = file ?? (chosen === undefined || this.#isText ? undefined : await this.#namedByGenai(chosen))
    const weights = graph === undefined ? [] : [...dataOf(this.#paths, graph), graph]
    await this.#fetch(weights)
    // The graph is the last file to appear, so a snapshot with a graph has the rest.
    await this.#place([...configs, ...weights])
    if (graph !== undefined) await this.#complete(graph)
    const folder = modelFolder(this.#paths, graphFolder)
    const path = (name: string): string => (name === '' ? this.#snapshot : pathIn(this.#snapshot, name))
    const dtype = graph === undefined ? undefined : chosen?.dtype
    return { folder: path(folder), graph: graph === undefined ? undefined : path(graph), dtype, commit: this.#commit }
  }

  /** The graph to download. */
  #choose(): HubGraph | undefined {
    const { folder, dtype } = this.#settings
    const graphs = graphsOf(this.#paths, folder)
    const found = graphOf(graphs, dtype)
    if (found !== undefined || this.#isText) return found ?? graphs[0]
    const inside = folder === undefined ? '' : ` in ${folder}`
    if (graphs.length > 0)
      throw modelNotFound(this.#settings, `it has no graph of ${dtype}${inside}, but ${shownGraphs(graphs)}`)
    const weights = this.#paths.some(path => path.endsWith('.safetensors')) ? ', only weights for Python' : ''
    const others = folder === undefined ? [] : graphsOf(this.#paths)
    const advice =
      others.length > 0
        ? `it has ${shownGraphs(others)}`
        : 'look for its name under onnx-community, or export it (docs/get-a-model.md)'
    throw modelNotFound(this.#settings, `it has no ONNX graph of a decoder${inside}${weights}: ${advice}`)
  }

  /** Adds files to the progress, and refuses them if the disk has no room for them. */
  async #plan(paths: readonly string[]): Promise<void> {
    for (const path of paths) {
      if (!isSafePath(path)) throw corrupt('the name of a file', path, 'a name that stays in its folder on any system')
      const file = this.#file(path)
      if ((await sizeOf(blobPath(this.#settings, file.sum))) === file.size || (await this.#isThere(file))) continue
      this.#meter.add(file, await bytesThere(this.#client, file))
    }
    await checkRoom(this.#settings, this.#meter.left)
  }

  #file(path: string): HubFile {
    const file = this.#files.get(path)
    if (file === undefined) throw corrupt('the list of files', `a list without ${path}`, 'one with it')
    return file
  }

  async #isThere({ path, sum, size }: HubFile): Promise<boolean> {
    return isPlaced(pathIn(this.#snapshot, path), sum, size)
  }

  /** Downloads blobs, a few at a time. The first failure ends the others. */
  async #fetch(paths: readonly string[]): Promise<void> {
    await this.#plan(paths)
    const queue = [...paths]
    const stop = new AbortController()
    const { signal } = this.#settings
    const end = (): void => stop.abort(signal?.reason)
    signal?.addEventListener('abort', end, { once: true })
    // A signal that was aborted in the meantime, during the plan, tells no listener.
    if (signal?.aborted === true) end()
    const client = new HubClient({ ...this.#settings, signal: stop.signal })
    const worker = async (): Promise<void> => {
      for (let path = queue.shift(); path !== undefined && !stop.signal.aborted; path = queue.shift()) {
        const file = this.#file(path)
        if (!(await this.#isThere(file))) await fetchBlob(client, this.#commit, file, this.#meter)
      }
    }
    let first: { readonly error: unknown } | undefined
    const guarded = async (): Promise<void> => {
      try {
        await worker()
      } catch (error) {
        first ??= { error }
        stop.abort()
      }
    }
    try {
      await Promise.all(Array.from({ length: AT_ONCE }, guarded))
    } finally {
      signal?.removeEventListener('abort', end)
    }
    this.#client.checkSignal()
    if (first !== undefined) throw first.error
  }

  /** Puts blobs into the snapshot, in this order. */
  async #place(paths: readonly string[]): Promise<void> {
    for (const path of paths) {
      const file = this.#file(path)
      const blob = blobPath(this.#settings, file.sum)
      if ((await sizeOf(blob)) === undefined) continue
      await placeFile(blob, pathIn(this.#snapshot, path), file.size, this.#settings.hasSymlinks)
    }
  }

  /** The graph that a `genai_config.json` names. */
  async #namedByGenai({ folder }: HubGraph): Promise<string | undefined> {
    const config = this.#file(folder === '' ? 'genai_config.json' : `${folder}/genai_config.json`)
    const blob = blobPath(this.#settings, config.sum)
    const at = (await sizeOf(blob)) === undefined ? pathIn(this.#snapshot, config.path) : blob
    const named = genaiFiles(await readFile(at, 'utf8'), folder).find(path => this.#files.has(path))
    if (named !== undefined) return named
    throw modelNotFound(this.#settings, `${config.path} names no graph that the repository has`)
  }

  /** Opens the graph and downloads what it lacks: weights whose names only it tells, its embeddings, its encoder. */
  async #complete(graph: string): Promise<void> {
    const [folder, seen] = [posix.dirname(graph), new Set<string>()]
    for (let more = 0; more < MORE_MAX; more++) {
      const missing = await missingOf(pathIn(this.#snapshot, graph))
      if (missing === undefined) return
      const paths =
        'file' in missing
          ? [posix.join(folder, missing.file)].filter(path => this.#files.has(path))
          : companionsOf(this.#paths, graph, missing.companions)
      // If the repository does not have it either, loading says so.
      if (paths.every(path => seen.has(path))) return
      for (const path of paths) seen.add(path)
      await this.#fetch(paths)
      await this.#place(paths)
      if ('companions' in missing) return
    }
  }
}

const shownBytes = (bytes: number): string => `${(bytes / 1e9).toFixed(2)} GB`

/** Refuses a download that the disk has no room for. Systems that don't know their room are believed to have it. */
async function checkRoom(settings: HubSettings, bytes: number): Promise<void> {
  if (bytes === 0) return
  for (let folder = hubFolder(settings); ; folder = dirname(folder)) {
    const found = await statfs(folder).catch(() => undefined)
    if (found === undefined && dirname(folder) !== folder) continue
    const free = found === undefined || found.blocks === 0 ? Infinity : found.bavail * found.bsize
    if (free >= bytes) return
    throw new KvTideError(
      'IO_ERROR',
      `cannot download ${settings.model}: ${shownBytes(bytes)} are missing, and the disk of ${folder} has room for ${shownBytes(free)}`,
      { operation: 'download', path: hubFolder(settings), reason: `${bytes} bytes are missing, ${free} are free` },
    )
  }
}
