// Finds the encoder of a decoder, and the facts that the decoder declares about it.
import { existsSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

import type { NativeOnnxGraph } from '#binding'

import { invalid, isKvTideError } from '../errors/errors.js'
import { dtypeRow } from '../border/host-array.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { BackendName } from './backend.js'
import { CrossCache } from './cross-cache.js'
import type { EncoderFacts } from './encoding.js'
import { openSource } from './graph-source.js'
import type { readLoad } from './options.js'
import { plainPorts } from './plain.js'
import { type CrossPort, isOfEncoder, type OnnxPorts } from './ports.js'
import { refusedPort } from './refused-node.js'

/** @internal The encoder of a decoder. */
export interface EncoderParts {
  readonly facts: EncoderFacts
  /** Its graph, if a file was given or found. */
  readonly graph: NativeOnnxGraph | undefined
}

/** The default limit of a cross cache. */
const CROSS_BYTES = 2 ** 30
/** The names of decoders, and of encoders beside them: merged ones, and those of onnxruntime-genai's builder. */
const MERGED = ['decoder_model_merged', 'encoder_model'] as const
const BUILT = ['decoder', 'encoder'] as const

/** @internal True if a graph is a decoder with an encoder, in any form. */
export function hasEncoder(graph: NativeOnnxGraph): boolean {
  return encoderInput(graph) !== undefined
}

/** @internal The first input of a graph that only a decoder with an encoder has. */
export function encoderInput(graph: NativeOnnxGraph): string | undefined {
  const names = graph.inputs().map(({ name }) => name)
  return names.find(name => name === 'encoder_hidden_states') ?? names.find(isOfEncoder)
}

/** @internal The encoder of a decoder; `undefined` for other models, and for forms of decoders that are refused. */
export async function encoderParts(
  decoder: NativeOnnxGraph,
  {
    encoder,
    crossCacheBytes,
    accuracyLevel,
  }: Pick<ReturnType<typeof readLoad>, 'encoder' | 'crossCacheBytes' | 'accuracyLevel'>,
): Promise<EncoderParts | undefined> {
  if (!hasEncoder(decoder)) {
    for (const [name, value] of Object.entries({ encoder, crossCacheBytes }))
      if (value !== undefined)
        throw invalid(name, value, 'no value: the model has no inputs for the output of an encoder')
    return undefined
  }
  const ports = portsOf(decoder)
  if (ports === undefined || ports.cross.length === 0) return undefined
  const [{ past, input: given }] = ports.cross as [CrossPort]
  const [name, type = 'float32'] = ports.isCrossGiven
    ? [past, given.type]
    : ['encoder_hidden_states', ports.typeOf('encoder_hidden_states')]
  if (type !== 'float32' && type !== 'float16')
    throw refusedPort(name, 'input', `its type is ${type}, expected float32 or float16`, 'type')
  const source = encoder ?? fileBeside(decoder.path, ports.isCrossGiven ? BUILT : MERGED)
  return {
    facts: { type, hasMask: ports.has('encoder_attention_mask'), isGiven: ports.isCrossGiven, ...sizesOf(ports) },
    graph: source === undefined ? undefined : await openSource(source, accuracyLevel),
  }
}

/** The numbers of frames and of elements of a frame, if the graph declares them. */
function sizesOf(ports: OnnxPorts): Pick<EncoderFacts, 'width' | 'frames'> {
  const name = 'encoder_hidden_states'
  if (!ports.isCrossGiven) return { width: ports.sizeOf(name, 2), frames: ports.sizeOf(name, 1) }
  const shapes = ports.cross.map(({ input: { shape } }) => shape ?? [])
  const widths = shapes.map(([, heads, , dim]) => Number(heads) * Number(dim))
  const width = widths.reduce((sum, one) => sum + one, 0)
  const [rows] = shapes.map(([, , frames]) => frames)
  return { width: width > 0 ? width : undefined, frames: typeof rows === 'number' ? rows : undefined }
}

/**
 * @internal The cross cache of a decoder. In all known models, a frame has as many keys and values in a layer as a token. If the encoder gives them, they are the
 * states of an encoding.
 */
export function crossCacheOf(
  { groups, dtype }: PagedKvCache,
  { isGiven }: EncoderFacts,
  backend: BackendName,
  bytesMax: number = CROSS_BYTES,
): CrossCache {
  if (isGiven) return new CrossCache(bytesMax, { frameBytes: 0, copies: 2 })
  const elements = groups.reduce(
    (sum, { layers, numKvHeads, headDim, valueHeadDim }) => sum + layers.length * numKvHeads * (headDim + valueHeadDim),
    0,
  )
  // On `plain` the states themselves are on the session thread as well.
  return new CrossCache(bytesMax, { frameBytes: elements * dtypeRow(dtype).bytes, copies: backend === 'plain' ? 2 : 1 })
}

/** The purposes of a decoder's inputs; `undefined` if `plain` refuses them, which names the reason. */
function portsOf(decoder: NativeOnnxGraph): OnnxPorts | undefined {
  try {
    return plainPorts(decoder)
  } catch (error) {
    if (isKvTideError(error)) return undefined
    throw error
  }
}

/** The encoder beside a decoder: `encoder_model_quantized.onnx` for `decoder_model_merged_quantized.onnx`. */
function fileBeside(path: string | null, [decoder, encoder]: readonly [string, string]): string | undefined {
  if (path === null || !basename(path).includes(decoder)) return undefined
  const file = join(dirname(path), basename(path).replace(decoder, encoder))
  return existsSync(file) ? file : undefined
}
