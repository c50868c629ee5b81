// The model of a decoder's embeddings: decoders of vision-language models take rows of embeddings instead of ids, and have this model beside them. kvtide runs
// it, so its callers pass ids as for any other model.
//
//     ids -> embed_tokens.onnx -> inputs_embeds, rows of images in it -> the decoder
//
// All outputs that are inputs of the decoder by name are passed on. The models of onnxruntime-genai also take features of images: they get none, since
// kvtide puts the rows of images in place itself.
import { existsSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

import type { NativeOnnxGraph } from '#binding'

import { invalid } from '../errors/errors.js'
import { genaiEmbedding } from './config.js'
import { openSource } from './graph-source.js'
import { refusedPort } from './refused-node.js'

/** The input of a decoder that takes embeddings. */
const EMBEDS = 'inputs_embeds'
/** The integers of ONNX that are ids. */
const WHOLE: ReadonlySet<string> = new Set(['i64', 'i32'])

/** @internal The model of a decoder's embeddings. */
export interface Embeddings {
  readonly graph: NativeOnnxGraph
  /** Elements of a row of `inputs_embeds`. */
  readonly width: number
  /** The decoder's inputs that it gives. */
  readonly names: readonly string[]
}

/** @internal Opens the model of a decoder's embeddings: the given one, or the one beside the decoder. `undefined` if the decoder takes ids alone, or if it takes both and there is no such model. */
export async function openEmbeddings(
  decoder: NativeOnnxGraph,
  given?: string | Uint8Array,
): Promise<Embeddings | undefined> {
  const inputs = decoder.inputs()
  const [takesEmbeds, takesIds] = [EMBEDS, 'input_ids'].map(own => inputs.some(({ name }) => name === own))
  if (takesEmbeds !== true) {
    if (given !== undefined) throw invalid('embeddings', given, 'no value: the model takes token ids itself')
    return undefined
  }
  if (takesIds === true && given === undefined && !candidatesOf(decoder.path).some(existsSync)) return undefined
  const graph = await openSource(given ?? beside(decoder.path))
  const names = check(graph, inputs)
  const [own, taken] = [graph.outputs(), inputs].map(ports => ports.find(({ name }) => name === EMBEDS)?.dims[2] ?? '?')
  const width = [taken, own].find(size => isSize(size as string))
  if (width === undefined)
    throw refusedPort(EMBEDS, 'input', 'neither the decoder nor its embeddings declare its width', 'embeddings')
  return { graph, width: Number(width), names }
}

/** The file of the embeddings beside a decoder. */
function beside(path: string | null): string {
  const looked = candidatesOf(path)
  const found = looked.find(existsSync)
  if (found !== undefined) return found
  const names = [...new Set(looked.map(file => basename(file)))].join(', ')
  const where = path === null ? 'the model is given as bytes' : `beside the model there is none of ${names}`
  throw refusedPort(EMBEDS, 'input', `it takes embeddings, and ${where}`, 'embeddings')
}

function candidatesOf(path: string | null): string[] {
  return path === null ? [] : candidates(path)
}

/** The files that may have the embeddings of a decoder, the best first: with the same suffix (`_q4`, `_fp16`), without one, then the names of onnxruntime-genai. */
function candidates(decoder: string): string[] {
  const suffix = /(_[a-z0-9]+)?\.onnx$/i.exec(basename(decoder).replace(NAMES, ''))?.[1] ?? ''
  const genai = genaiEmbedding(decoder)
  const names = ['embed_tokens', 'embedding'].map(name => [`${name}${suffix}.onnx`, `${name}.onnx`])
  const [own, others] = names.map(pair => pair.map(name => join(dirname(decoder), name))) as [string[], string[]]
  return [...own, ...(genai === undefined ? [] : [genai]), ...others]
}

/** The names of decoders, before a suffix. */
const NAMES = /^(decoder_model_merged|decoder_with_past_model|decoder_model|decoder|language_model|model|text)/

/** Checks the ports of a model of embeddings. Returns the decoder's inputs that it gives. */
function check(graph: NativeOnnxGraph, inputs: readonly Port[]): string[] {
  const ids = graph.inputs().filter(({ element }) => WHOLE.has(element))
  if (ids.length !== 1 || ids[0]?.dims.length !== 2)
    throw refusedPort(
      ids[1]?.name ?? 'input_ids',
      'input',
      'a model of embeddings takes ids, [batch, tokens], and no other integers',
      'embeddings',
    )
  for (const { name, element, dims } of graph.inputs()) {
    if (WHOLE.has(element)) continue
    if (!/^f(32|16)$/.test(element) || !name.endsWith('_features') || dims.every(isSize))
      throw refusedPort(name, 'input', 'kvtide passes only token ids to a model of embeddings', 'embeddings')
  }
  const outputs = graph.outputs()
  if (!outputs.some(({ name }) => name === EMBEDS)) {
    const own = outputs.map(({ name }) => name).join(', ')
    throw refusedPort(
      EMBEDS,
      'output',
      `a model of embeddings has it, but the outputs of this one are ${own}`,
      'embeddings',
    )
  }
  const given = inputs.filter(({ name }) => outputs.some(output => output.name === name))
  for (const { name, element, dims } of given) {
    const output = outputs.find(port => port.name === name) as Port
    const isOther = output.dims.length > 0 && output.dims.length !== dims.length
    const differs = dims.some(
      (dim, axis) => isSize(dim) && isSize(output.dims[axis] ?? '') && dim !== output.dims[axis],
    )
    if ((output.element === element || output.element === '') && !isOther && !differs) continue
    const [one, other] = [output, { element, dims }].map(port => `${port.element} [${port.dims.join(', ')}]`)
    throw refusedPort(name, 'output', `the embeddings give ${one}, but the decoder takes ${other}`, 'embeddings')
  }
  return given.map(({ name }) => name)
}

type Port = ReturnType<NativeOnnxGraph['inputs']>[number]

function isSize(dim: string): boolean {
  return /^\d+$/.test(dim)
}
