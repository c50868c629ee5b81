// Options of an OnnxModel and of its methods, and their checks.
import {
  arrayKind,
  count,
  fields,
  flag,
  isArray,
  isObject,
  known,
  list,
  type Names,
  optional,
  typedArray,
  whole,
} from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { isAbortSignal } from '../border/stop-signal.js'
import { readPath } from '../files/source.js'
import { readSampling, SAMPLING_OPTIONS, type SamplingOptions } from '../sampling/options.js'
import { type Grammar, type GrammarText, readGrammar } from '../sampling/grammar.js'
import { readVocabulary, type Vocabulary } from '../sampling/vocabulary.js'
import type { HuggingFaceConfig } from '../sequences/model-description.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import { PROMPT, promptOf, type PromptOptions } from '../sequences/prompt.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { BACKENDS, type BackendName } from './backend.js'
import type { DraftModel } from './drafter.js'
import type { EncoderOutput, Encoding } from './encoding.js'
import type { GenerationSettings } from './generation.js'
import type { AccuracyLevel } from './graph-source.js'
import { type GraphDType, readGraphDType } from './model-folder.js'
import { type EmbeddingForm, type EmbedSpan, readEmbeds } from './spans.js'
import { checkPositions, readKnown, readPositions } from './token-log.js'

/** The cache of a model: all options of a `PagedKvCache` except those that follow from the graph. */
export type OnnxCacheOptions = Omit<ModelCacheOptions, 'model' | 'dtype' | 'device' | 'maxPrefillTokens'>

/** @internal The rotation of a model's V: unless the options say otherwise, V in four bits is rotated, which lowers its error in models. */
export const rotationOf = ({
  valueFormat,
  valueHadamard,
}: OnnxCacheOptions): Pick<ModelCacheOptions, 'valueHadamard'> => ({
  valueHadamard: valueHadamard ?? valueFormat === 'q4',
})

/** Options of {@link OnnxModel.load}. */
export interface OnnxModelOptions {
  /**
   * The model's `config.json`: a path, or its content. By default the one next to the model, or one folder up, if there is one. It declares which
   * layers have a window if the graph does not, the length of the model's context, and the ids that end its answers.
   */
  readonly config?: HuggingFaceConfig
  /**
   * The graph of a folder, by its weights: `q4` for `model_q4.onnx`, in the folder or in its `onnx`. By default the decoder that `genai_config.json` names, then
   * `model.onnx`, then the first of `q4`, `q8`, `f16` that is there. For a folder only.
   */
  readonly dtype?: GraphDType
  /**
   * The precision of products with int4 weights (`MatMulNBits`), instead of the graph's own `accuracy_level`. 4 rounds activations to int8, with a scale for
   * each block of the weights, which is faster; 0 keeps floats. Other products are not changed. A model with another level has another fingerprint, so caches
   * do not mix them.
   */
  readonly accuracyLevel?: AccuracyLevel
  /**
   * The cache. By default it has 1 GiB for at most 32 sequences at once, pages in the graph's dtype (`q8` or `q4` if the graph quantises its pasts to 8 or
   * 4 bits), V rotated by `valueHadamard` if its pages are `q4`, and a namespace that is a fingerprint of the graph and of samples of its weights.
   */
  readonly cache?: OnnxCacheOptions
  /**
   * The model that computes the embeddings of token ids, for a decoder that takes `inputs_embeds`: a path, or its bytes. By default `embed_tokens.onnx` next
   * to the decoder, with the same suffix or without one, or the one of onnxruntime-genai.
   */
  readonly embeddings?: string | URL | Uint8Array
  /** The number of threads that a step uses; by default kvtide's number of threads. */
  readonly threads?: number
  /** The backend to use. By default the first that works: `graph`, `parts`, `plain`. */
  readonly backend?: BackendName
  /** The maximum number of tokens that one step computes, of all sequences together; 512 by default. */
  readonly maxStepTokens?: number
  /**
   * The encoder of a decoder like Whisper's or T5's: the path of its file, or its bytes. By default the file beside the model whose name has `encoder_model` in place
   * of `decoder_model_merged`, if there is one.
   */
  readonly encoder?: string | URL | Uint8Array
  /**
   * The limit of the cross cache in bytes; 1 GiB by default. The cross cache keeps encodings with their keys and values for later sequences. Encodings that a
   * step uses are kept until the step ends, even if they exceed the limit.
   */
  readonly crossCacheBytes?: number
}

/** Images in a prompt. */
export interface EmbedsOption {
  /** Rows of embeddings in place of those of the ids at their positions, for models that take embeddings. */
  readonly embeds?: readonly EmbedSpan[]
}

/** Positions in a prompt at which later prompts may start to differ. */
export interface CheckpointsOption {
  /**
   * Positions in tokens of the sequence, ascending, at most its length: ends of messages, of documents. If layers of the model keep states, a checkpoint of the
   * states is kept at the last whole block before each position. A later prompt that differs from there on continues from the checkpoint. Other models ignore
   * the positions. The ends of prompts and answers, `saltFrom`, and positions at which prompts differed before need not be named.
   */
  readonly checkpoints?: readonly number[]
}

/** Options of {@link OnnxModel.open}. */
export interface OpenOptions extends PromptOptions, EmbedsOption, CheckpointsOption {
  /** The prompt. Its cached prefix is not computed again. None by default. */
  readonly tokens?: TokenIds
  /** The encoding that a decoder with an encoder attends to: the result of {@link OnnxModel.encode}, or the output of an encoder. Required for such a model. */
  readonly encoded?: Encoding | EncoderOutput
}

/** Tokens of one sequence to run. */
export interface RunEntry<Sequence> extends CheckpointsOption {
  readonly sequence: Sequence
  /** New tokens, behind those that are pending. */
  readonly tokens?: TokenIds
}

/** Options of {@link OnnxModel.run}. */
export interface RunOptions {
  /** `'last'`, the default, for logits of the last token of each sequence; `'all'` for all tokens that the call computes. */
  readonly logits?: 'last' | 'all'
  /** Aborts the call between two steps: the promise is then rejected with `ABORTED`. */
  readonly signal?: AbortSignal
}

/** Options of {@link OnnxModel.generate}. */
export interface GenerateOptionsOf<Model> extends SamplingOptions, CheckpointsOption {
  /** New tokens before the generated ones: the user's next message. */
  readonly tokens?: TokenIds
  /**
   * The maximum number of tokens to generate. By default as many as fit into the cache and the model's context: the generation then ends with
   * `finishReason` `'length'`. It never exceeds what the context leaves behind the prompt.
   */
  readonly maxTokens?: number
  /**
   * The texts that may be generated, as a JSON schema, a regular expression or a Lark grammar: only tokens that continue such a text are drawn. Ids that end
   * the generation are allowed exactly where the text is complete. If nothing else is, the generation ends with `finishReason` `'stop'`. Compiled once for each
   * vocabulary, in the background, at the first `next()`; a grammar that cannot be used is refused with `INVALID_GRAMMAR` there.
   */
  readonly grammar?: Grammar
  /** The tokens that `grammar` is matched with. By default those of the `tokenizer.json` beside the model, which is read once. */
  readonly vocabulary?: Vocabulary
  /** Ids that end the generation, besides the model's `endOfSequence`. They are not returned, and do not become part of the sequence. */
  readonly stop?: readonly number[] | Uint32Array
  /** True to generate past the model's `endOfSequence`: vLLM's `ignore_eos`. Ids of `stop` end the generation in any case. False by default. */
  readonly ignoreEndOfSequence?: boolean
  /**
   * Drafts tokens, so that one step verifies several. `'lookup'` drafts by prompt lookup, at most 8 tokens at once unless `lookup` is given; the
   * generated tokens stay the same. A smaller model with the same tokenizer drafts 4 at once unless `tokens` is given; at temperature 0 the
   * generated tokens stay the same, otherwise their distribution does.
   */
  readonly draft?: 'lookup' | { readonly lookup: number } | Model | { readonly model: Model; readonly tokens?: number }
  /** Aborts the generation: the next `next()` is then refused with `ABORTED`. */
  readonly signal?: AbortSignal
}

/** @internal The names of the options of a load. */
export const LOAD: Names<OnnxModelOptions> = {
  config: 0,
  dtype: 0,
  accuracyLevel: 0,
  cache: 0,
  embeddings: 0,
  threads: 0,
  backend: 0,
  maxStepTokens: 0,
  encoder: 0,
  crossCacheBytes: 0,
}
const OPEN: Names<OpenOptions> = { ...PROMPT, tokens: 0, embeds: 0, encoded: 0, checkpoints: 0 }
const ENTRY: Names<RunEntry<unknown>> = { sequence: 0, tokens: 0, checkpoints: 0 }
const RUN: Names<RunOptions> = { logits: 0, signal: 0 }
const GENERATE: Names<GenerateOptionsOf<unknown>> = {
  ...SAMPLING_OPTIONS,
  tokens: 0,
  maxTokens: 0,
  grammar: 0,
  vocabulary: 0,
  stop: 0,
  ignoreEndOfSequence: 0,
  draft: 0,
  signal: 0,
  checkpoints: 0,
}
const DRAFT: Names<{ lookup: number; model: unknown; tokens: number }> = { lookup: 0, model: 0, tokens: 0 }

/** The default number of tokens drafted at once, by prompt lookup and by a model. */
const DRAFTED = { text: 8, model: 4 }
const DRAFTED_MAX = 64
const TOKENS = 512

/** @internal Reads the options of loading a model. */
export function readLoad(options: unknown) {
  const { config, dtype, accuracyLevel, cache, embeddings, threads, backend, maxStepTokens, encoder, crossCacheBytes } =
    known<OnnxModelOptions>('options', options, LOAD)
  if (accuracyLevel !== undefined && accuracyLevel !== 0 && accuracyLevel !== 4)
    throw invalid('accuracyLevel', accuracyLevel, '0 or 4')
  if (backend !== undefined && !BACKENDS.includes(backend as BackendName))
    throw invalid('backend', backend, BACKENDS.join(', '))
  if (config !== undefined && typeof config !== 'string') fields('config', config)
  return {
    config: config as HuggingFaceConfig | undefined,
    dtype: optional(readGraphDType, 'dtype', dtype),
    accuracyLevel: accuracyLevel as AccuracyLevel | undefined,
    cache: optional(readCacheOptions, 'cache', cache) ?? {},
    embeddings: optional(readModelSource, 'embeddings', embeddings),
    threads: optional((argument, value) => count(argument, value, 1, 1024), 'threads', threads),
    backends: backend === undefined ? BACKENDS : [backend as BackendName],
    maxStepTokens: optional((argument, value) => count(argument, value, 1), 'maxStepTokens', maxStepTokens) ?? TOKENS,
    encoder: optional(readModelSource, 'encoder', encoder),
    crossCacheBytes: optional(whole, 'crossCacheBytes', crossCacheBytes),
  }
}

/** @internal Copies the options of a model's cache, and refuses those that follow from the graph. The cache checks the others. */
export function readCacheOptions(argument: string, cache: unknown): OnnxCacheOptions {
  const given = { ...fields<ModelCacheOptions>(argument, cache) }
  for (const name of ['model', 'dtype', 'device', 'maxPrefillTokens'] as const) {
    if (given[name] !== undefined)
      throw invalid(`${argument}.${name}`, given[name], 'no value: it follows from the graph and from maxStepTokens')
  }
  return given as OnnxCacheOptions
}

/** @internal Reads the options of opening a sequence. */
export function readOpen(options: unknown, vocabulary: number | undefined, form: EmbeddingForm | undefined) {
  const { tokens, salt, saltFrom, extra, embeds, encoded, checkpoints } = known<OpenOptions>('options', options, OPEN)
  const ids = readIds('tokens', tokens, vocabulary)
  const positions = readPositions('checkpoints', checkpoints)
  checkPositions('checkpoints', positions, ids.length)
  const prompt = promptOf({ salt, saltFrom, extra })
  return { tokens: ids, prompt, embeds: readEmbeds(embeds, form), encoded, checkpoints: positions }
}

/** @internal Separates the images and the encoding from the other options of a call, whose names are given. Each option is read once. */
export function apart(
  options: unknown,
  names: Readonly<Record<string, 0>>,
): { readonly embeds: unknown; readonly encoded: unknown; readonly rest: Readonly<Record<string, unknown>> } {
  const given: Readonly<Record<string, unknown>> = known('options', options, { ...names, embeds: 0, encoded: 0 })
  const rest = Object.fromEntries(Object.keys(names).map(name => [name, given[name]]))
  return { embeds: given['embeds'], encoded: given['encoded'], rest }
}

/** @internal A list of sequences and their tokens. */
export function readEntries(
  entries: unknown,
  vocabulary: number | undefined,
): { sequence: unknown; tokens: Uint32Array; checkpoints: readonly number[] }[] {
  if (!isArray(entries)) throw invalid('entries', entries, 'an array of { sequence, tokens }')
  return list('entries', entries, (argument, entry) => {
    const { sequence, tokens, checkpoints } = known<RunEntry<unknown>>(argument, entry, ENTRY)
    const ids = readIds(`${argument}.tokens`, tokens, vocabulary)
    return { sequence, tokens: ids, checkpoints: readPositions(`${argument}.checkpoints`, checkpoints) }
  })
}

/** @internal */
export function readRun(options: unknown): { isLast: boolean; signal: AbortSignal | undefined } {
  const { logits = 'last', signal } = known<RunOptions>('options', options, RUN)
  if (logits !== 'last' && logits !== 'all') throw invalid('logits', logits, 'last or all')
  return { isLast: logits === 'last', signal: optional(readSignal, 'signal', signal) }
}

/** @internal `modelOf` reads a second model, and returns `undefined` if the value is not a model. */
export function readGenerate(
  options: unknown,
  { vocabulary, ends }: { readonly vocabulary: number | undefined; readonly ends: readonly number[] },
  modelOf: (argument: string, value: unknown) => DraftModel | undefined,
): Omit<GenerationSettings, 'limits' | 'constrain'> & { readonly constrained: Constrained | undefined } {
  const given = known<GenerateOptionsOf<unknown>>('options', options, GENERATE)
  const { tokens, maxTokens, stop, ignoreEndOfSequence, draft, signal } = given
  const isEndless = optional(flag, 'ignoreEndOfSequence', ignoreEndOfSequence) === true
  return {
    tokens: readIds('tokens', tokens, vocabulary),
    maxTokens: optional((argument, value) => count(argument, value, 1), 'maxTokens', maxTokens) ?? Infinity,
    stop: new Set([...(isEndless ? [] : ends), ...(optional(readTokens, 'stop', stop) ?? [])]),
    sampling: readSampling(given),
    constrained: readConstrained(given.grammar, given.vocabulary),
    signal: optional(readSignal, 'signal', signal),
    checkpoints: readPositions('checkpoints', given.checkpoints),
    draft: draft === undefined ? undefined : readDraft(draft, modelOf),
    vocabulary,
  }
}

/** @internal A grammar, and the vocabulary that was given for it. */
export interface Constrained {
  readonly grammar: GrammarText
  readonly vocabulary: Vocabulary | undefined
}

function readConstrained(grammar: unknown, vocabulary: unknown): Constrained | undefined {
  const given = optional(readVocabulary, 'vocabulary', vocabulary)
  return grammar === undefined ? undefined : { grammar: readGrammar('grammar', grammar), vocabulary: given }
}

/** @internal Reads the option `draft`. `modelOf` reads a second model, and returns `undefined` if the value is not a model. */
export function readDraft(
  value: unknown,
  modelOf: (argument: string, value: unknown) => DraftModel | undefined,
): GenerationSettings['draft'] {
  if (value === 'lookup') return { most: DRAFTED.text, model: undefined }
  const expected =
    "'lookup', { lookup } with the maximum number of tokens at once, another OnnxModel, or { model, tokens }"
  if (!isObject(value)) throw invalid('draft', value, expected)
  const own = modelOf('draft', value)
  if (own !== undefined) return { most: DRAFTED.model, model: own }
  const { lookup, model, tokens } = known<{ lookup: number; model: unknown; tokens: number }>('draft', value, DRAFT)
  if ((lookup === undefined) === (model === undefined)) throw invalid('draft', value, expected)
  if (model === undefined) {
    if (tokens !== undefined) throw invalid('draft.tokens', tokens, 'no value together with lookup')
    return { most: count('draft.lookup', lookup, 1, DRAFTED_MAX), model: undefined }
  }
  const second = modelOf('draft.model', model)
  if (second === undefined) throw invalid('draft.model', model, 'an OnnxModel')
  return {
    most: optional((argument, most) => count(argument, most, 1, DRAFTED_MAX), 'draft.tokens', tokens) ?? DRAFTED.model,
    model: second,
  }
}

function readSignal(argument: string, value: unknown): AbortSignal {
  if (isAbortSignal(value)) return value
  throw invalid(argument, value, 'an AbortSignal')
}

/** Reads token ids of the model's vocabulary, as a copy: the caller's array may change before they are used. Empty for `undefined`. */
function readIds(argument: string, tokens: unknown, vocabulary: number | undefined): Uint32Array {
  return tokens === undefined ? new Uint32Array(0) : readKnown(argument, tokens, vocabulary).slice()
}

/** @internal A path of a model, or its bytes. A `file:` URL may be a string, as `import.meta.resolve` returns it. */
export function readModelSource(argument: string, model: unknown): string | Uint8Array {
  if (typeof model !== 'string' && arrayKind(model) !== undefined)
    return typedArray<Uint8Array>(argument, model, ['Uint8Array'])
  return readPath(argument, typeof model === 'string' && /^file:\/\//i.test(model) ? urlOf(model) : model)
}

/** The URL in a text; the text itself if it has none. */
function urlOf(value: string): URL | string {
  return URL.canParse(value) ? new URL(value) : value
}
