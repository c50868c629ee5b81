// Finds the graph of a model among the names of a repository's files, and the files that belong to it. Names alone decide, so the same rules hold for the
// Hub's list and for a folder of the cache.
//
//     onnx-community, HuggingFaceTB, ...   onnx/model_q4.onnx, onnx/model_q4.onnx_data, onnx/model_q4.onnx_data_1, ...
//     optimum                              model.onnx, model.onnx_data, decoder_model_merged.onnx
//     onnxruntime-genai                    cpu_and_mobile/cpu-int4-rtn-block-32/genai_config.json, which names the graph beside it
//     vision-language models               onnx/decoder_model_merged_q4.onnx with onnx/embed_tokens_q4.onnx
//
// Costs: O(files) for a repository.
import { posix } from 'node:path'

import type { GraphDType } from '../../onnx/model-folder.js'

/** The forms of graphs, with the suffixes of their files; the order is that of the default. `q8` is dynamically quantised. */
export const DTYPES: Readonly<Record<GraphDType, readonly string[]>> = {
  q4: ['_q4'],
  q8: ['_quantized', '_int8'],
  f16: ['_fp16'],
  f32: [''],
  int8: ['_int8'],
  uint8: ['_uint8'],
  q4f16: ['_q4f16'],
  bnb4: ['_bnb4'],
  q2: ['_q2'],
  q2f16: ['_q2f16'],
  q1: ['_q1'],
  q1f16: ['_q1f16'],
  fp32: [''],
  fp16: ['_fp16'],
}

/** @internal A graph that a repository has. */
export interface HubGraph {
  /** Its folder inside the repository; empty for the root. */
  readonly folder: string
  /** Its file; `undefined` if the `genai_config.json` of its folder names it. */
  readonly file: string | undefined
  readonly dtype: GraphDType | undefined
  /** True if its folder's name is that of another device than the processor. */
  readonly isForDevice: boolean
}

/** The folder that onnxruntime-genai recommends for processors: products of int8. */
const EXACT = 'acc-level-4'
const PREFERRED = Object.keys(DTYPES) as GraphDType[]
/** The names of decoders that keep a past. */
const DECODER =
  /^(?:model|decoder_model_merged|decoder_with_past_model|decoder|language_model|text)(_[a-z0-9]+)?\.onnx$/i
const GENAI = 'genai_config.json'
const DEVICE =
  /(?:^|[-_./])(?:cuda|gpu|directml|dml|webgpu|web|npu|qnn|openvino|tensorrt|trt|rocm|migraphx|vitis|ryzen)/i

const nameOf = (path: string): string => posix.basename(path)
const folderOf = (path: string): string => (posix.dirname(path) === '.' ? '' : posix.dirname(path))
const joined = (folder: string, name: string): string => (folder === '' ? name : `${folder}/${name}`)

/** @internal All graphs of decoders that a repository has, the best first. */
export function graphsOf(paths: readonly string[], within?: string): HubGraph[] {
  const inside = within === undefined ? paths : paths.filter(path => path.startsWith(`${within}/`))
  const models = inside.filter(path => path.endsWith('.onnx'))
  const genai = new Set(inside.filter(path => nameOf(path) === GENAI).map(folderOf))
  const found: HubGraph[] = []
  for (const folder of genai) {
    const own = models.filter(path => folderOf(path) === folder)
    if (own.length === 0) continue
    const file = own.length === 1 ? own[0] : undefined
    found.push({
      folder,
      file,
      dtype: dtypeOfGenai(joined(folder, own[0] as string)),
      isForDevice: DEVICE.test(folder),
    })
  }
  for (const file of models) {
    const folder = folderOf(file)
    const [, suffix] = DECODER.exec(nameOf(file)) ?? []
    if (genai.has(folder) || !DECODER.test(nameOf(file))) continue
    const dtype = dtypeOf(suffix ?? '')
    if (dtype !== undefined) found.push({ folder, file, dtype, isForDevice: DEVICE.test(folder) })
  }
  const [only] = models
  if (found.length === 0 && models.length === 1 && only !== undefined)
    found.push({ folder: folderOf(only), file: only, dtype: dtypeOfGenai(only), isForDevice: DEVICE.test(only) })
  return found.toSorted((one, other) => compare(rank(one), rank(other)))
}

/** @internal The graph of a dtype, or the best one. */
export function graphOf(graphs: readonly HubGraph[], dtype: GraphDType | undefined): HubGraph | undefined {
  if (dtype === undefined) return graphs[0]
  const suffixes = DTYPES[dtype]
  const isNamed = ({ file }: HubGraph, suffix: string): boolean =>
    file !== undefined && nameOf(file).endsWith(`${suffix}.onnx`)
  const named = suffixes.flatMap(suffix => (suffix === '' ? [] : graphs.filter(graph => isNamed(graph, suffix))))
  return named[0] ?? graphs.find(graph => graph.dtype === dtype || `fp${graph.dtype?.slice(1)}` === dtype)
}

/** @internal True if nothing better can be in a repository: the default of a complete list and of any part of it are the same. */
export function isFirstChoice({ folder, dtype, isForDevice }: HubGraph): boolean {
  return dtype === PREFERRED[0] && !isForDevice && (folder === '' || folder === 'onnx' || folder.includes(EXACT))
}

/** The order of graphs: for the processor, by dtype, as onnxruntime-genai recommends for processors, in short folders, by name. */
function rank({ folder, file, dtype, isForDevice }: HubGraph): (number | string)[] {
  const place = dtype === undefined ? PREFERRED.length : PREFERRED.indexOf(dtype)
  const isSecond = file !== undefined && /(?:_int8|decoder_with_past_model\w*)\.onnx$/.test(file)
  const ranks = [isForDevice, !folder.includes(EXACT), isSecond].map(Number)
  const [device, exact, second] = ranks as [number, number, number]
  return [device, place, exact, folder.split('/').length, second, joined(folder, file ?? '')]
}

function compare(one: readonly (number | string)[], other: readonly (number | string)[]): number {
  for (const [place, value] of one.entries()) {
    const second = other[place] as number | string
    if (value !== second) return value < second ? -1 : 1
  }
  return 0
}

function dtypeOf(suffix: string): GraphDType | undefined {
  return PREFERRED.find(dtype => DTYPES[dtype].includes(suffix.toLowerCase()))
}

/** The dtype that the names of a file and its folders contain: `cpu-int4-rtn-block-32`. */
function dtypeOfGenai(path: string): GraphDType | undefined {
  const forms: readonly (readonly [RegExp, GraphDType])[] = [
    [/int4|q4|4bit/i, 'q4'],
    [/int8|q8|8bit|quantized/i, 'q8'],
    [/fp16|f16/i, 'f16'],
    [/fp32|f32/i, 'f32'],
  ]
  return forms.find(([form]) => form.test(path))?.[1]
}

/** @internal The files beside a graph that have its weights, by their names: `.onnx_data`, `.onnx_data_1`, `.onnx.data`, `.data`, ... */
export function dataOf(paths: readonly string[], graph: string): string[] {
  const stem = graph.slice(0, -'.onnx'.length)
  const isData = (path: string): boolean => {
    const rest = path.startsWith(graph)
      ? path.slice(graph.length)
      : path.startsWith(stem)
        ? path.slice(stem.length)
        : ''
    return /^[._](?:data|weights?|bin)(?:[._-]?\d+)?$/.test(rest)
  }
  return paths.filter(isData)
}

/** @internal The graphs that give a decoder its embeddings or its encoder's output: with the decoder's suffix first, then without. */
export function companionsOf(paths: readonly string[], graph: string, names: readonly string[]): string[] {
  const [, suffix = ''] = DECODER.exec(nameOf(graph)) ?? []
  const found: string[] = []
  for (const name of names) {
    const files = [`${name}${suffix}.onnx`, `${name}.onnx`].map(file => joined(folderOf(graph), file))
    const file = files.find(each => paths.includes(each))
    if (file !== undefined) return [...found, file, ...dataOf(paths, file)]
  }
  return found
}

/** @internal Files that tell a model's tokens, its template, its ends and its sizes. */
const CONFIGS = [
  'config.json',
  'generation_config.json',
  GENAI,
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template.jinja',
  'chat_template.json',
  'preprocessor_config.json',
  'processor_config.json',
]

/** @internal The config files of a graph: each from the graph's folder, or from the nearest folder above it. */
export function configsOf(paths: readonly string[], folder: string): string[] {
  const all = new Set(paths)
  const folders = ancestors(folder)
  const named = CONFIGS.flatMap(name => {
    const found = folders.map(each => joined(each, name)).find(path => all.has(path))
    return found === undefined || (name === GENAI && folderOf(found) !== folder) ? [] : [found]
  })
  const more = folders.map(each => `${joined(each, 'additional_chat_templates')}/`)
  const templates = more.map(start =>
    paths.filter(path => path.startsWith(start) && path.endsWith('.jinja') && folderOf(path) === start.slice(0, -1)),
  )
  return [...named, ...(templates.find(files => files.length > 0) ?? [])]
}

/** @internal The folder that stands for the model: the nearest one, from the graph's upwards, with a tokenizer, else with a config, else the graph's. */
export function modelFolder(paths: readonly string[], folder: string): string {
  const all = new Set(paths)
  const folders = ancestors(folder)
  for (const names of [
    ['tokenizer.json', 'tokenizer_config.json'],
    ['config.json', GENAI],
  ]) {
    const found = folders.find(each => names.some(name => all.has(joined(each, name))))
    if (found !== undefined) return found
  }
  return folder
}

/** A folder and those above it, up to the root. */
function ancestors(folder: string): string[] {
  const folders = [folder]
  for (let each = folder; each !== '';) folders.push((each = folderOf(each)))
  return folders
}

/** @internal The files that the text of a `genai_config.json` names: the graph of the decoder, that of its embeddings. */
export function genaiFiles(text: string, folder: string): string[] {
  let config: { readonly model?: Readonly<Record<string, { readonly filename?: unknown } | undefined>> }
  try {
    config = JSON.parse(text) as typeof config
  } catch {
    return []
  }
  return ['decoder', 'embedding'].flatMap(part => {
    const name = config?.model?.[part]?.filename
    return typeof name === 'string' ? [posix.normalize(joined(folder, name))] : []
  })
}

/** @internal The graphs in one line: their dtypes and files. */
export function shownGraphs(graphs: readonly HubGraph[]): string {
  const shown = graphs.slice(0, 8).map(({ dtype = 'another', folder, file }) => `${dtype} (${file ?? folder})`)
  return [...shown, ...(graphs.length > 8 ? ['…'] : [])].join(', ')
}
