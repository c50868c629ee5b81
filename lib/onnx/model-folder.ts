// Chooses the graph of a folder: a model of the Hub with its graphs in `onnx/`, or the output of an exporter.
//
//     dtype given    model_q4.onnx, decoder_model_merged_q4.onnx; another graph, if it is the only one with this suffix
//     none           the decoder that genai_config.json names; then model.onnx, model_q4.onnx, model_quantized.onnx, ...; then the only graph
//
// Each name is looked for in the folder, then in its `onnx`. Encoders, embeddings and towers of images are never chosen.
import { existsSync, readdirSync, statSync } from 'node:fs'
import { basename, join, relative } from 'node:path'

import { invalid, messageOf } from '../errors/errors.js'
import { genaiDecoder } from './config.js'

/** The weights of a graph in a folder, by which exporters name the file: `q4` is `model_q4.onnx`. `fp32` and `fp16` mean the same as `f32` and `f16`. */
export type GraphDType =
  | 'f32'
  | 'f16'
  | 'q8'
  | 'q4'
  | 'q4f16'
  | 'int8'
  | 'uint8'
  | 'bnb4'
  | 'q2'
  | 'q2f16'
  | 'q1'
  | 'q1f16'
  | 'fp32'
  | 'fp16'

/** The suffixes of graphs, as transformers.js names them, in the order in which they are taken by default. */
const SUFFIXES: Readonly<Record<GraphDType, string>> = {
  f32: '',
  q4: '_q4',
  q8: '_quantized',
  f16: '_fp16',
  q4f16: '_q4f16',
  int8: '_int8',
  uint8: '_uint8',
  bnb4: '_bnb4',
  q2: '_q2',
  q2f16: '_q2f16',
  q1: '_q1',
  q1f16: '_q1f16',
  fp32: '',
  fp16: '_fp16',
}

const DTYPES = Object.keys(SUFFIXES) as GraphDType[]
/** The names of decoders, before a suffix. */
const STEMS = ['model', 'decoder_model_merged'] as const
/** The folders with graphs, in a folder. */
const PLACES = ['', 'onnx'] as const
/** Graphs that are parts of a model besides its decoder. */
const PARTS =
  /^(?:(?:text_|audio_|vision_|speech_|image_)?encoder|embed|vision|audio|speech|image|prepare_|multi_modal|projector|joiner|vocoder)/i
const SUFFIX = new RegExp(`(${[...new Set(Object.values(SUFFIXES))].filter(Boolean).join('|')})?\\.onnx$`, 'i')
/** The most files that an error lists. */
const LISTED = 12

/** @internal Reads the option `dtype`. */
export function readGraphDType(argument: string, value: unknown): GraphDType {
  if (typeof value === 'string' && DTYPES.includes(value as GraphDType)) return value as GraphDType
  throw invalid(argument, value, DTYPES.join(', '))
}

/** @internal The path of a model's graph: the path itself, or the graph that is chosen in a folder. */
export function graphFile(path: string, dtype: GraphDType | undefined, argument: string = 'model'): string {
  if (isFolder(path)) return chosen(path, dtype, argument)
  if (dtype !== undefined)
    throw invalid('dtype', dtype, `no value: ${argument} is not a folder in which to choose a graph`)
  return path
}

function isFolder(path: string): boolean {
  try {
    return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true
  } catch {
    // The error of opening it says why.
    return false
  }
}

function chosen(folder: string, dtype: GraphDType | undefined, argument: string): string {
  const genai = genaiDecoder(folder)
  if (dtype === undefined && genai !== undefined && existsSync(genai)) return genai
  const graphs = graphsIn(folder, argument)
  const suffixes = dtype === undefined ? Object.values(SUFFIXES) : [SUFFIXES[dtype]]
  for (const suffix of suffixes) {
    for (const place of PLACES) {
      for (const stem of STEMS) {
        const file = join(folder, place, `${stem}${suffix}.onnx`)
        if (graphs.includes(file)) return file
      }
    }
  }
  const others = graphs.filter(
    file => !PARTS.test(basename(file)) && (dtype === undefined || suffixOf(file) === SUFFIXES[dtype]),
  )
  if (others.length === 1) return others[0] as string
  throw refused({ folder, dtype, argument, graphs, others, genai })
}

/** The graphs in a folder, by their paths. */
function graphsIn(folder: string, argument: string): string[] {
  return PLACES.flatMap(place => {
    try {
      const entries = readdirSync(join(folder, place), { withFileTypes: true })
      const files = entries.filter(entry => !entry.isDirectory() && /\.onnx$/i.test(entry.name))
      return files.map(({ name }) => join(folder, place, name)).toSorted()
    } catch (error) {
      if (place !== '') return []
      const reason = messageOf(error)
      throw invalid(argument, folder, `a folder that can be read (${reason})`)
    }
  })
}

/** The suffix of a graph's name that says what its weights are. */
function suffixOf(file: string): string {
  return SUFFIX.exec(basename(file))?.[1]?.toLowerCase() ?? ''
}

/** The error of a folder in which no graph was chosen. It lists the graphs that are there. */
function refused({
  folder,
  dtype,
  argument,
  graphs,
  others,
  genai,
}: {
  readonly folder: string
  readonly dtype: GraphDType | undefined
  readonly argument: string
  readonly graphs: readonly string[]
  readonly others: readonly string[]
  readonly genai: string | undefined
}): Error {
  const names = graphs.map(file => relative(folder, file))
  const more = names.length > LISTED ? ` and ${names.length - LISTED} more` : ''
  const there = names.length === 0 ? 'it has no .onnx file' : `it has ${names.slice(0, LISTED).join(', ')}${more}`
  const missing = genai === undefined ? '' : `, and not ${relative(folder, genai)}, which genai_config.json names`
  if (others.length > 1) return invalid(argument, folder, `the path of one of several graphs: ${there}${missing}`)
  if (dtype !== undefined && graphs.length > 0)
    return invalid(
      'dtype',
      dtype,
      `the weights of a graph in the folder, such as model${SUFFIXES[dtype]}.onnx: ${there}`,
    )
  return invalid(
    argument,
    folder,
    `a folder with a decoder, such as model.onnx or onnx/model_q4.onnx: ${there}${missing}`,
  )
}
