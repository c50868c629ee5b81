import { PagedKvCache, Tensor } from '../../../index.js'
import { INTERNAL } from '../../../lib/border/owner.js'
import type { Backend } from '../../../lib/onnx/backend.js'
import { CrossCache } from '../../../lib/onnx/cross-cache.js'
import { OnnxModel, OnnxPast, type OnnxSequence } from '../../../onnx.js'
import { graphFile } from '../onnx/graphs.js'
import { Dice, ToyBackend, toyModel, VOCABULARY } from '../onnx/toy-model.js'
import {
  but,
  count,
  flag,
  never,
  optional,
  options,
  otherIds,
  out,
  prompt,
  tensor,
  text,
  tokenIds,
  type Kind,
} from './kinds.js'
import { fileOptions, ownPrompt, path, source } from './files.js'
import { free, Members, param, type Row } from './row.js'
import { ANY, begin, restored, retained, some } from './rows-contiguous.js'
import { sampling, signal } from './sampling.js'
import { vocabularyRows } from './rows-vocabulary.js'
import { VALUES } from './values.js'

const model = (): OnnxModel => toyModel(new ToyBackend(new Dice(1)), { capacity: 64 })
const opened = (self: OnnxModel): OnnxSequence => self.open({ tokens: [1, 2] })
/** Refused: the toy takes ids only. */
const embeds = optional({ legal: {} })
/** Positions in a prompt: the prompt of these calls has one token, or none. */
const checkpoints = optional({ legal: { 'an empty array': 'ok' } })

/** Nothing can be passed to a model without an encoder. */
const encoded: Kind = optional({ legal: {} })

const models = new Members('OnnxModel', model)
  .method(
    'loadSequence',
    source(await opened(model()).saveBytes()),
    fileOptions(ANY, { ...ownPrompt, embeds, encoded }),
  )
  .method('open', some({ tokens: optional(tokenIds), embeds, encoded, checkpoints, ...prompt }))
  .special('crossCache', { disposed: 'ok', foreign: 'INVALID_ARGUMENT' })
  .method(
    'admit',
    param('tokens', tokenIds, () => [1, 2]),
    some({
      ...prompt,
      embeds,
      encoded,
      watermark: optional(count),
      answerTokens: optional(count),
      stepTokens: optional(but(count, {})),
    }),
  )
  .method(
    'generate',
    param('sequence', { legal: {} }, opened),
    some({
      ...sampling,
      tokens: optional(tokenIds),
      maxTokens: optional(but(count, {})),
      grammar: optional({ legal: {} }),
      vocabulary: optional({ legal: {} }),
      stop: optional(tokenIds),
      ignoreEndOfSequence: optional(flag),
      draft: optional({ legal: {} }),
      signal: optional(signal),
      checkpoints,
    }),
  )
  .method(
    'run',
    param('entries', { legal: { 'an empty array': 'ok' } }, (self: OnnxModel) => [
      { sequence: opened(self), tokens: [3] },
    ]),
    some({ logits: optional(text), signal: optional(signal) }),
  )
  .method(
    'between',
    param('call', { legal: { 'a function': 'ok' } }, () => () => 5),
  )
  .disposable()
  .special('[asyncDispose]', { disposed: 'ok', foreign: 'INVALID_ARGUMENT' })

/** The inputs and outputs of an encoder, as the addon and the runtime describe them. */
const encoder = { inputs: () => [{ name: 'input_ids', element: 'i64', dims: ['batch', 'tokens'] }], outputs: () => [] }
const frames = { type: 'float32', data: new Float32Array(2), dims: [1, 1, 2] }

/** A model with an encoder. */
function encoding(): OnnxModel {
  const backend: Backend = Object.assign(new ToyBackend(new Dice(1)), { encode: () => Promise.resolve(frames) })
  const facts = { type: 'float32', width: 2, hasMask: false }
  return new OnnxModel(INTERNAL, {
    cache: pages(),
    backend,
    refusals: [],
    vocabulary: VOCABULARY,
    limits: { stepTokens: 4, sequences: 4 },
    encoded: { facts, graph: encoder, cross: new CrossCache(0, { frameBytes: 0, copies: 2 }) },
  })
}

const encoders = new Members('OnnxModel', encoding).method(
  'encode',
  param(
    'inputs',
    options(() => ({ input_ids: [5] }), {
      input_ids: but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT', 'a disposed Tensor': 'DISPOSED' }),
    }),
    () => ({ input_ids: [5] }),
  ),
)

const two = (): Tensor => Tensor.from(Float32Array.from([1, 2, 3, 4]), [1, 1, 2, 2])
const input = (): object => ({ k: two(), v: two(), tokens: [5, 6] })
const arrays = (): object => ({ k: new Float32Array(4), v: new Float32Array(4) })
const pages = (): PagedKvCache =>
  new PagedKvCache({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2 }] }, capacity: 8, blockSize: 2 })

/** An empty sequence of a model over a cache. */
function sequenceOver(cache: PagedKvCache): OnnxSequence {
  const loaded = {
    cache,
    backend: new ToyBackend(new Dice(1)),
    refusals: [],
    vocabulary: VOCABULARY,
    limits: { stepTokens: 4, sequences: 4 },
  }
  return new OnnxModel(INTERNAL, loaded).open()
}

/** A sequence of two tokens, of a model whose cache has rows of two elements. */
function sequence(): OnnxSequence {
  const made = sequenceOver(pages())
  made.append(input() as never)
  return made
}

/** A sequence of a model whose layer keeps a state. */
function stated(): OnnxSequence {
  const tensors = [{ name: 'ssm', shape: [16], dtype: 'f32' }] as const
  const layers = [{ kind: 'full', numKvHeads: 1, headDim: 2, tensors }] as const
  return sequenceOver(new PagedKvCache({ model: { layers }, capacity: 8, blockSize: 2 }))
}

const states = new Members('OnnxSequence', stated).plain('states')
const sequences = new Members('OnnxSequence', sequence)
  .plain('tokens', 'length', 'committedLength', 'retainedLength', 'capacity', 'fork', 'snapshot', 'drop')
  .method(
    'append',
    param(
      'input',
      options(input, {
        k: tensor,
        v: tensor,
        tokens: but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT', ...otherIds }),
      }),
      input,
    ),
  )
  .method(
    'truncate',
    param('len', count, () => 1),
  )
  .method(
    'resume',
    param('tokens', tokenIds, () => [5, 6]),
  )
  .method(
    'identify',
    param('tokens', but(tokenIds, otherIds), () => [5, 6]),
  )
  .method(
    'readInto',
    param(
      'out',
      options(arrays, { k: out('DIM_MISMATCH'), v: out('DIM_MISMATCH'), layers: optional({ legal: {} }) }),
      arrays,
    ),
  )
  .method(
    'kv',
    param('layer', count, () => 0),
  )
  .method('restore', restored)
  .method('begin', begin)
  .method(
    'retain',
    retained(() => ({ priority: 5 })),
  )
  .method('save', path, fileOptions(ANY))
  .method('saveBytes', fileOptions(ANY))
  .disposable()

const over = { disposed: 'ok', foreign: 'INVALID_ARGUMENT' }
const generations = new Members('Generation', () => {
  const self = model()
  return self.generate(opened(self), { maxTokens: 1 })
})
  .special('finishReason', over)
  .special('logprobs', over)
  .special('usage', over)
  .special('next', over)
  .special('return', over)
  .special('[asyncIterator]', over)
  .special('[asyncDispose]', over)

class AnyTensor {
  readonly type: string
  readonly data: object
  readonly dims: readonly number[]

  constructor(type: string, data: object, dims: readonly number[]) {
    this.type = type
    this.data = data
    this.dims = dims
  }
}

const session = {
  inputNames: ['input_ids', 'past_key_values.0.key', 'past_key_values.0.value'],
  outputNames: ['logits', 'present.0.key', 'present.0.value'],
}
const names = (): object => ({
  pastKey: 'past_key_values.%d.key',
  pastValue: 'past_key_values.%d.value',
  presentKey: 'present.%d.key',
  presentValue: 'present.%d.value',
  pastStates: 'past_%s.%d',
  presentStates: 'present_%s.%d',
})
const ofPast = (): object => ({ session, cache: pages(), Tensor: AnyTensor })
const present = (): AnyTensor => new AnyTensor('float32', Float32Array.from([1, 2, 3, 4]), [1, 1, 2, 2])

const pasts = new Members('OnnxPast', () => new OnnxPast(ofPast() as never))
  .plain('length', 'fork')
  .method(
    'resume',
    param('tokens', but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT' }), () => [1, 2]),
  )
  .method(
    'commit',
    param<OnnxPast>('outputs', { legal: {} }, self => {
      // A wrong or disposed `this` is refused before the outputs are checked.
      if (self instanceof OnnxPast) self.resume([1, 2])
      return { 'present.0.key': present(), 'present.0.value': present() }
    }),
    param('tokens', optional({ legal: { 'an empty array': 'ok' } }), () => [1]),
  )
  .disposable()

function isObject(value: unknown): boolean {
  try {
    return typeof value === 'object' && value !== null && JSON.stringify(value).startsWith('{')
  } catch {
    return false
  }
}

/** Every row of `kvtide/onnx` that needs no runtime. */
export const onnxRows: readonly Row[] = [
  ...['OnnxModel', 'OnnxSequence', 'Generation', 'Encoding'].map(name =>
    free(
      `new ${name}`,
      param('token', never, () => undefined),
      param('inner', never, () => undefined),
    ),
  ),
  ...models.rows,
  ...encoders.rows,
  ...sequences.rows,
  ...states.rows,
  ...generations.rows,
  ...vocabularyRows,
  free(
    'new OnnxPast',
    param(
      'options',
      options(ofPast, {
        session: { legal: {} },
        cache: { legal: {} },
        Tensor: { legal: { 'a function': 'ok' } },
        names: optional(
          options(names, {
            pastKey: text,
            pastValue: text,
            presentKey: text,
            presentValue: text,
            pastStates: text,
            presentStates: text,
          }),
        ),
        ...prompt,
      }),
      ofPast,
    ),
  ),
  ...pasts.rows,
]

const small = (): object => ({ backend: 'plain', threads: 1, cache: { capacity: 4, blockSize: 2 } })

/** The outcomes of objects that are not a config. */
const config: Kind = {
  legal: Object.fromEntries(
    Object.entries(VALUES)
      .filter(([, value]) => isObject(value))
      .map(([name]) => [name, 'UNSUPPORTED_MODEL']),
  ),
}

/** Tensors have a `dtype`, which a model in a file has no use for. */
const WITH_DTYPE: Kind['legal'] = {
  ...Object.fromEntries(
    [
      'a Tensor of another shape',
      'a Tensor of another dtype',
      'a proxy of a Tensor',
      'what looks like a Tensor',
      'a Snapshot that looks like a Tensor',
    ].map(name => [name, 'INVALID_ARGUMENT']),
  ),
  'a disposed Tensor': 'DISPOSED',
}

/** Options for loading a model. */
export const loadRows: readonly Row[] = [
  free(
    'OnnxModel.load',
    param('model', { legal: { 'a Uint8Array': 'INVALID_GRAPH' } }, () => graphFile('llama/onnx')),
    param(
      'options',
      options(
        small,
        {
          config: optional(config),
          dtype: optional(text),
          accuracyLevel: optional({ legal: {} }),
          cache: optional({ legal: ANY }),
          embeddings: optional({ legal: {} }),
          threads: optional(count),
          backend: optional(text),
          maxStepTokens: optional(count),
          encoder: encoded,
          crossCacheBytes: encoded,
        },
        { ...ANY, ...WITH_DTYPE },
      ),
      small,
    ),
  ),
]
