// Descriptions of models: layers written by hand, or a Hugging Face `config.json`, which the addon parses.
import { count, fields, flag, float, isArray, known, list, type Names, optional, text } from '../errors/check.js'
import { invalid } from '../errors/errors.js'

const DESCRIPTION: Names<ModelDescription> = { layers: 0, attention: 0 }
const ATTENTION: Names<ModelAttention> = { numQueryHeads: 0, scale: 0, softcap: 0, sinkLogits: 0 }
const LAYER: Names<ModelLayer> = {
  kind: 0,
  window: 0,
  sinks: 0,
  with: 0,
  numKvHeads: 0,
  headDim: 0,
  valueHeadDim: 0,
  tensors: 0,
}
const STATE: Names<StateTensor> = { name: 0, shape: 0, dtype: 0 }

/** One layer of a model: which tokens it keeps, and the sizes of a token in it. */
export interface ModelLayer {
  /** `full` keeps every token, `sliding` the newest ones. `shared` keeps none, and reads those of an earlier layer. */
  readonly kind: 'full' | 'sliding' | 'shared'
  /** For a sliding layer, the number of positions that a query sees, including its own. */
  readonly window?: number
  /** For a sliding layer, the tokens at the start that are visible in addition; none by default. */
  readonly sinks?: number
  /** For a shared layer, the earlier layer whose keys and values it reads. Both have the same sizes. */
  readonly with?: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements per head of K. */
  readonly headDim: number
  /** Elements per head of V; by default the same as for K. */
  readonly valueHeadDim?: number
  /** For a full or sliding layer, the states that it keeps in addition to K and V. */
  readonly tensors?: readonly StateTensor[]
}

/** A tensor of a fixed size that a layer keeps for a sequence: the columns of a short convolution, the state of Mamba or of a gated delta net. */
export interface StateTensor {
  /** The name, unique in the layer: `conv`, `ssm`, `recurrent`. */
  readonly name: string
  /** The dimensions, without that of sequences. */
  readonly shape: readonly number[]
  /** The element type. */
  readonly dtype: 'f32' | 'f16' | 'bf16'
}

/** A layer that keeps states instead of K and V. */
export interface StateLayer {
  readonly kind: 'state'
  /** Its states, at least one. */
  readonly tensors: readonly StateTensor[]
}

/** A layer that keeps neither K and V nor a state, such as the feed-forward layers that Nemotron-H counts as layers. */
export interface EmptyLayer {
  readonly kind: 'empty'
}

/** The attention of all layers, if it differs from plain attention. */
interface ModelAttention {
  /** Query heads, a multiple of each layer's heads of K and V. */
  readonly numQueryHeads?: number
  /** Scores are multiplied by this; `1 / sqrt(headDim)` by default. */
  readonly scale?: number
  /** Limits scores to `softcap * tanh(score / softcap)`. */
  readonly softcap?: number
  /** True if each query head of each layer has a learned sink logit. They then have to be passed to `attend` as `sinkLogits`. */
  readonly sinkLogits?: boolean
}

/** A model described by hand: its layers and their attention. */
export interface ModelDescription {
  /** The layers, in order. */
  readonly layers: readonly (ModelLayer | StateLayer | EmptyLayer)[]
  /** The attention of all layers. */
  readonly attention?: ModelAttention
}

/**
 * A Hugging Face `config.json`, parsed or as text, of Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3, Phi-3 or gpt-oss; and of models with
 * states: LFM2, LFM2-MoE, Granite 4 hybrid, Bamba, Falcon-H1, Nemotron-H, Jamba, Mamba, Falcon-Mamba, Mamba 2, Qwen3-Next and Qwen3.5. A field
 * that is missing or `null` has the default of the family's class in transformers. Other models are refused with `UNSUPPORTED_MODEL`.
 *
 * A convolution keeps one column fewer than its kernel has, in the cache's `dtype`; other states are `f32` unless the file says otherwise. A
 * graph may declare its states otherwise: describe those by hand.
 */
export type HuggingFaceConfig = string | { readonly model_type?: unknown; readonly [field: string]: unknown }

const KINDS = ['full', 'sliding', 'shared', 'state', 'empty']
const STATE_DTYPES = ['f32', 'f16', 'bf16']

const LAYERS_MAX = 65_536
const STATE_DIMS_MAX = 8

/** @internal Converts a model into the form that the addon takes. */
export function readModel(model: unknown) {
  const none = {
    config: undefined,
    layers: [],
    numQueryHeads: undefined,
    scale: undefined,
    softcap: undefined,
    sinkLogits: false,
  }
  if (typeof model === 'string') return { ...none, config: model }
  const { layers, attention } = fields<ModelDescription>('model', model)
  if (layers === undefined) return { ...none, config: json(model) }
  known<ModelDescription>('model', model, DESCRIPTION)
  if (!isArray(layers)) throw invalid('layers', layers, 'an array of layers')
  const given = attention === undefined ? {} : known<ModelAttention>('attention', attention, ATTENTION)
  const { numQueryHeads, scale, softcap, sinkLogits } = given
  return {
    config: undefined,
    layers: readLayers(layers),
    numQueryHeads: optional((argument, value) => count(argument, value, 1), 'numQueryHeads', numQueryHeads),
    scale: optional(positive, 'scale', scale),
    softcap: optional(positive, 'softcap', softcap),
    sinkLogits: optional(flag, 'sinkLogits', sinkLogits) ?? false,
  }
}

const positive = (argument: string, value: unknown): number =>
  float(argument, value, number => number > 0, 'a finite number above 0')

function json(model: unknown): string {
  let found: unknown
  try {
    found = JSON.stringify(model)
  } catch {
    throw invalid('model', model, 'a configuration that can be written as JSON')
  }
  return text('model', found)
}

type Layer = ReturnType<typeof readLayer>

function readLayers(layers: readonly unknown[]): Layer[] {
  const before: Layer[] = []
  return list(
    'layers',
    layers,
    (argument, entry) => {
      const layer = readLayer(argument, entry, before)
      before.push(layer)
      return layer
    },
    LAYERS_MAX,
  )
}

function readLayer(argument: string, entry: unknown, before: readonly { readonly kind: number }[]) {
  const given = known<ModelLayer>(argument, entry, LAYER)
  const { kind, window, sinks, with: other, numKvHeads, headDim, valueHeadDim, tensors } = given
  const of = KINDS.indexOf(kind as string)
  if (of < 0) throw invalid(`${argument}.kind`, kind, KINDS.join(' or '))
  const only = (owners: readonly number[], field: keyof ModelLayer): void => {
    if (!owners.includes(of) && given[field] !== undefined)
      throw invalid(`${argument}.${field}`, given[field], `no value in a layer of kind ${KINDS[of]}`)
  }
  only([1], 'window')
  only([1], 'sinks')
  only([2], 'with')
  only([0, 1, 3], 'tensors')
  for (const size of ['numKvHeads', 'headDim', 'valueHeadDim'] as const) only([0, 1, 2], size)
  const hasKv = of < 3
  const dim = hasKv ? count(`${argument}.headDim`, headDim, 1) : 0
  return {
    kind: of,
    window: of === 1 ? count(`${argument}.window`, window, 1) : 0,
    sinks: optional(count, `${argument}.sinks`, sinks) ?? 0,
    sharedWith: of === 2 ? shared(`${argument}.with`, other, before) : 0,
    numKvHeads: hasKv ? count(`${argument}.numKvHeads`, numKvHeads, 1) : 0,
    headDim: dim,
    valueHeadDim: optional(count, `${argument}.valueHeadDim`, valueHeadDim) ?? dim,
    tensors: of === 3 || tensors !== undefined ? readStates(`${argument}.tensors`, tensors) : [],
  }
}

function readStates(argument: string, tensors: unknown) {
  if (!isArray(tensors)) throw invalid(argument, tensors, 'an array of states')
  return list(
    argument,
    tensors,
    (place, entry) => {
      const { name, shape, dtype } = known<StateTensor>(place, entry, STATE)
      if (!isArray(shape)) throw invalid(`${place}.shape`, shape, 'an array of sizes')
      if (!STATE_DTYPES.includes(dtype as string)) throw invalid(`${place}.dtype`, dtype, STATE_DTYPES.join(' or '))
      return {
        name: text(`${place}.name`, name),
        shape: list(`${place}.shape`, shape, (at, size) => count(at, size, 1), STATE_DIMS_MAX),
        dtype: dtype as string,
      }
    },
    LAYERS_MAX,
  )
}

function shared(argument: string, other: unknown, before: readonly { readonly kind: number }[]): number {
  const layer = typeof other === 'number' ? before[other] : undefined
  if (layer === undefined || layer.kind >= 2)
    throw invalid(argument, other, 'an earlier layer that keeps tokens itself')
  return other as number
}
