// A model in the cache folder: its graph, and whether everything is there that a download would bring.
import { join, posix } from 'node:path'
import { readFile } from 'node:fs/promises'

import { isKvTideError } from '../../errors/errors.js'
import { openSource } from '../../onnx/graph-source.js'
import type { GraphDType } from '../../onnx/model-folder.js'
import { companionsOf, genaiFiles, graphOf, graphsOf, isFirstChoice, modelFolder } from './graphs.js'
import { filesOf, pathIn, snapshotFolder } from './layout.js'
import type { HubSettings } from './settings.js'

/** @internal A model in the cache folder. */
export interface HubModel {
  /** The folder with its configs and its tokenizer. */
  readonly folder: string
  /** The graph's file; `undefined` if only the texts were asked for. */
  readonly graph: string | undefined
  readonly dtype: GraphDType | undefined
  readonly commit: string
}

/** The models of graphs that give a decoder what it takes beside tokens. */
const EMBEDDINGS = ['embed_tokens', 'embedding']
const ENCODERS = ['encoder_model', 'encoder']

/** @internal The file that a graph needs and does not have, or the names of graphs one of which it needs. */
export type Missing = { readonly file: string } | { readonly companions: readonly string[] }

/** @internal Opens a graph, without its weights, and returns what it lacks. `undefined` if it lacks nothing, also if it is no graph: loading says more about that. */
export async function missingOf(graph: string): Promise<Missing | undefined> {
  try {
    const inputs = (await openSource(graph)).inputs().map(({ name }) => name)
    if (inputs.includes('inputs_embeds') && !inputs.includes('input_ids')) return { companions: EMBEDDINGS }
    const isCrossed = inputs.some(name => name === 'encoder_hidden_states' || /\.encoder\.(?:key|value)$/.test(name))
    return isCrossed ? { companions: ENCODERS } : undefined
  } catch (error) {
    if (!isKvTideError(error) || error.code !== 'INVALID_GRAPH') throw error
    const { file, tensor } = error.details
    return file !== undefined && tensor !== undefined ? { file } : undefined
  }
}

/** @internal A model as it is in the cache folder, and whether a download could bring more. */
export interface LocalModel {
  readonly model: HubModel
  /** True if the Hub has nothing that is better or missing. */
  readonly isComplete: boolean
}

/** @internal Looks for a model in the snapshot of a commit. `undefined` if its graph, or a part of that, is not there. */
export async function localModel(
  settings: HubSettings,
  commit: string,
  isText: boolean,
): Promise<LocalModel | undefined> {
  const snapshot = snapshotFolder(settings, commit)
  const files = await filesOf(snapshot)
  const found = graphOf(graphsOf(files, settings.folder), settings.dtype)
  const inFolder = (folder: string): string => (folder === '' ? snapshot : pathIn(snapshot, folder))
  if (isText) {
    const folder = found === undefined ? (settings.folder ?? '') : modelFolder(files, found.folder)
    const hasTokenizer = files.includes(posix.join(folder, 'tokenizer.json'))
    if (!hasTokenizer) return undefined
    // The folder of a graph that is not there may be another one.
    const isComplete = found !== undefined || settings.folder !== undefined
    return { model: { folder: inFolder(folder), graph: undefined, dtype: undefined, commit }, isComplete }
  }
  if (found === undefined) return undefined
  const file = found.file ?? (await namedByGenai(snapshot, found.folder, files))
  if (file === undefined) return undefined
  const graph = pathIn(snapshot, file)
  const missing = await missingOf(graph)
  if (missing !== undefined && 'file' in missing) return undefined
  if (missing !== undefined && companionsOf(files, file, missing.companions).length === 0) return undefined
  const folder = modelFolder(files, found.folder)
  const isComplete =
    (settings.dtype !== undefined || (settings.folder !== undefined && found.dtype === 'q4') || isFirstChoice(found)) &&
    files.includes(posix.join(folder, 'tokenizer.json'))
  return { model: { folder: inFolder(folder), graph, dtype: found.dtype, commit }, isComplete }
}

/** The graph that the `genai_config.json` of a folder names, if it is there. */
async function namedByGenai(snapshot: string, folder: string, files: readonly string[]): Promise<string | undefined> {
  const text = await readFile(
    join(folder === '' ? snapshot : pathIn(snapshot, folder), 'genai_config.json'),
    'utf8',
  ).catch(() => '')
  return genaiFiles(text, folder).find(file => files.includes(file))
}
