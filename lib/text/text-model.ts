// kvtide/text: text in and out of an OnnxModel. `TextModel` loads a model with its tokenizer and template (files, tokenizer, template), makes prompts
// (prompts), and reads answers (answer, text-generation). The form of chats follows from the template (chat-format).
import { statSync } from 'node:fs'
import { basename, dirname, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

import { checkInternal, checkThis, INTERNAL, settle } from '../border/owner.js'
import { isObject, known, type Names, optional, text as string } from '../errors/check.js'
import { checkSignal, invalid, isKvTideError, KvTideError } from '../errors/errors.js'
import { type GenerateOptions, OnnxModel } from '../onnx/model.js'
import { line } from '../errors/shown.js'
import { LOAD, type OnnxModelOptions } from '../onnx/options.js'
import type { Vocabulary } from '../sampling/vocabulary.js'
import type { AnswerWork, PreparedAnswer } from './answer.js'
import { ChatFormat } from './chat-format.js'
import { Codec } from './codec.js'
import { readTextFiles, type TextFiles } from './files.js'
import { findModel } from './hub/hub.js'
import { isHubName } from './hub/name.js'
import { DOWNLOAD, readDownload } from './hub/settings.js'
import { type AnswerOptions, readChat, readCompletion, readRender, type RenderOptions } from './options.js'
import { Prompts } from './prompts.js'
import { endOfText, type SamplingDefaults, samplingDefaults, withDefaults } from './settings.js'
import { ChatTemplate } from './template.js'
import { TextGeneration } from './text-generation.js'
import { TextTokenizer } from './tokenizer.js'
import { PLAIN } from './tools/parts.js'
import type { Grammar } from '../sampling/grammar.js'
import type { ChatOptions, CompleteOptions, TextModelOptions, ToolFamily } from './types.js'

/** @internal The parts of a loaded model. */
interface Loaded {
  readonly model: OnnxModel
  readonly codec: Codec
  readonly template: ChatTemplate | undefined
  readonly files: TextFiles
  readonly name: string
}

/** The properties of a model that never change. */
type Facts = 'model' | 'tokenizer' | 'name' | 'contextLength' | 'hasTemplate' | 'toolFamily'

const OPTIONS: Names<TextModelOptions> = { ...LOAD, ...DOWNLOAD, template: 0 }
/** The names of special tokens that templates use. */
const SPECIALS = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'] as const

/**
 * A language model that reads and writes text: an {@link OnnxModel} with the tokenizer and the chat template that lie beside it.
 *
 * Needs the packages `@huggingface/tokenizers` and `@huggingface/jinja`, besides `onnxruntime-node`.
 *
 * @example
 * ```ts
 * import { TextModel } from 'kvtide/text'
 *
 * await using model = await TextModel.load('HuggingFaceTB/SmolLM2-135M-Instruct')
 * const messages = [{ role: 'user', content: 'What is the capital of France?' }] as const
 * for await (const piece of model.chat({ messages, maxTokens: 100 })) process.stdout.write(piece)
 * ```
 */
export class TextModel implements AsyncDisposable, Disposable {
  /** The model behind it: its cache, its statistics. It is disposed of with this one. */
  declare readonly model: OnnxModel
  /** The tokenizer: text to ids, and back. */
  declare readonly tokenizer: TextTokenizer
  /** The name that it was loaded by: `org/name`, or the name of its folder. */
  declare readonly name: string
  /** The maximum number of tokens of a prompt with its answer: see `contextLength` of {@link OnnxModel}. */
  declare readonly contextLength: number | undefined
  /** True if it has a chat template. */
  declare readonly hasTemplate: boolean
  /** The form in which it calls tools; `undefined` if its template takes no tools, or writes calls in a form that is not known. */
  declare readonly toolFamily: ToolFamily | undefined
  readonly #codec: Codec
  readonly #prompts: Prompts
  readonly #format: ChatFormat
  readonly #defaults: SamplingDefaults
  readonly #ends: readonly number[]
  #isDisposed = false
  #vocabulary: Promise<Vocabulary> | undefined

  /** @internal */
  constructor(token: unknown, loaded: unknown) {
    checkInternal(token, 'TextModel', 'TextModel.load(model) instead')
    const { model, codec, template, files, name } = loaded as Loaded
    const tokenizer = new TextTokenizer(INTERNAL, codec)
    this.#codec = codec
    this.#format = new ChatFormat(name, codec, template)
    const { contextLength } = model
    const { hasTemplate, family, endOfTurn } = this.#format
    settle<TextModel, Facts>(this, { model, tokenizer, name, contextLength, hasTemplate, toolFamily: family })
    this.#prompts = new Prompts(codec, this.#format)
    this.#defaults = samplingDefaults(files)
    const ends = [...endOfText(codec), ...(endOfTurn === undefined ? [] : [endOfTurn])]
    this.#ends = ends.filter(id => !model.endOfSequence.includes(id))
  }

  /**
   * Loads a model with its tokenizer and its chat template.
   *
   * @param model a folder with a graph and a `tokenizer.json`, the path of a graph in such a folder, a `file:` URL of either, or a name on the Hub:
   * `'org/name'` or `'org/name@revision'`, which is downloaded into the Hub's own cache folder
   * @throws KvTideError `INVALID_TOKENIZER` if there is no tokenizer or none that can be used, `TEMPLATE_FAILED` for a template that cannot be parsed,
   * `RUNTIME_UNAVAILABLE` without a package that is needed, `MODEL_NOT_FOUND` and `HUB_UNAVAILABLE` for a name on the Hub; and the errors of `OnnxModel.load`
   */
  static async load(model: string | URL, options: TextModelOptions = {}): Promise<TextModel> {
    const own = known<TextModelOptions>('options', options, OPTIONS) as Record<string, unknown>
    const read = Object.fromEntries(Object.keys(OPTIONS).map(name => [name, own[name]]))
    const named = optional(string, 'template', read['template'])
    const hub = pick(read, DOWNLOAD)
    const { signal } = readDownload(hub)
    checkSignal(signal)
    const place = await placeOf(model, hub)
    const files = readTextFiles(place.folder)
    const codec = await Codec.load(files)
    const chat = await ChatTemplate.of(files.templates, named, specialsOf(codec))
    checkSignal(signal)
    const { dtype, ...others } = pick(read, LOAD) as OnnxModelOptions
    const loaded = await OnnxModel.load(place.graph, place.isChosen ? others : { ...others, ...given({ dtype }) })
    try {
      checkSignal(signal)
      return new TextModel(INTERNAL, { model: loaded, codec, template: chat, files, name: place.name })
    } catch (error) {
      await loaded.dispose()
      throw error
    }
  }

  /**
   * Answers the messages of a chat. Computing starts with the first read of the result.
   *
   * A chat that goes on, with the answer as a message behind its others, reuses the ids and the keys and values of all earlier turns.
   *
   * @throws KvTideError `INVALID_ARGUMENT` at once for options that are wrong, `DISPOSED` for a draft model that was disposed of. The first read throws
   * `TEMPLATE_FAILED` if the template refuses the messages, `CONTEXT_OVERFLOW` for a prompt that is longer than the context, before anything is computed,
   * and the errors of `OnnxModel.generate`
   */
  chat(options: ChatOptions): TextGeneration {
    TextModel.#check(this)
    const read = readChat(options, { target: this.model, modelOf: onnxModelOf })
    const prepare = async (isEnded: () => boolean): Promise<PreparedAnswer> => {
      const { ids, checkpoints, reading, remember } = await this.#prompts.of(read, isEnded)
      return {
        ids,
        checkpoints,
        options: await this.#generateOptions(read, reading.grammar),
        isShown: reading.isShown,
        isStart: true,
        parser: reading.parser,
        hasCalls: () => reading.calls.count > 0,
        finished: remember,
      }
    }
    return new TextGeneration(INTERNAL, this.#work(read, prepare))
  }

  /**
   * Continues a text, without a template: for base models, and for prompts of your own. The tokenizer's special tokens are put in front, as it says.
   *
   * @throws KvTideError as {@link chat}
   */
  complete(options: CompleteOptions): TextGeneration {
    TextModel.#check(this)
    const read = readCompletion(options, { target: this.model, modelOf: onnxModelOf })
    const prepare = async (isEnded: () => boolean): Promise<PreparedAnswer> => {
      const { prompt } = read
      const { encoder } = this.#codec
      const ids =
        typeof prompt === 'string' ? encoder.around((await encoder.encodeFrom(prompt, 0, isEnded)).ids) : prompt
      if (ids.length === 0) throw invalid('prompt', prompt, 'a text with at least one token')
      return {
        ids,
        checkpoints: read.checkpoints,
        options: await this.#generateOptions(read, read.grammar),
        isShown: id => !this.#codec.isSpecial(id),
        isStart: false,
        parser: PLAIN,
        hasCalls: () => false,
        finished: () => {},
      }
    }
    return new TextGeneration(INTERNAL, this.#work(read, prepare))
  }

  /** Returns the text of a chat that the template makes, up to the place of the answer. */
  render(options: RenderOptions): string {
    TextModel.#check(this)
    const { messages, tools, variables } = readRender(options)
    return this.#format.render(messages, tools, variables)
  }

  /** Disposes of the model: see `dispose` of {@link OnnxModel}. Answers that are being read end with `DISPOSED`. */
  async dispose(): Promise<void> {
    TextModel.#checkThis(this)
    this.#isDisposed = true
    await this.model.dispose()
  }

  /** As {@link dispose}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return TextModel.prototype.dispose.call(this)
  }

  /** As {@link dispose}, for `using`, which does not wait for the end. */
  [Symbol.dispose](): void {
    TextModel.#checkThis(this)
    this.#isDisposed = true
    this.model[Symbol.dispose]()
  }

  static #checkThis(self: unknown): void {
    checkThis(self, value => #prompts in value, 'a TextModel')
  }

  /** Refuses a `this` that is not a TextModel, or that was disposed of. */
  static #check(self: TextModel): void {
    TextModel.#checkThis(self)
    if (self.#isDisposed) throw new KvTideError('DISPOSED', 'the TextModel was disposed of', { object: 'TextModel' })
  }

  #work(options: AnswerOptions, prepare: AnswerWork['prepare']): AnswerWork {
    return { model: this.model, codec: this.#codec, options, prepare }
  }

  async #generateOptions(options: AnswerOptions, grammar: Grammar | undefined): Promise<GenerateOptions> {
    const { sampling, maxTokens, stopTokens, ignoreEndOfSequence, signal, draft } = options
    const ends = ignoreEndOfSequence ? [] : this.#ends
    return {
      ...withDefaults(sampling, this.#defaults),
      ...given({ maxTokens, signal, draft }),
      stop: [...ends, ...stopTokens],
      ignoreEndOfSequence,
      ...(grammar === undefined ? {} : { grammar, vocabulary: await this.#vocabularyOf() }),
    } as GenerateOptions
  }

  /** The bytes of all tokens, for grammars. They are read once. A failure is not kept: the next grammar reads them again. */
  #vocabularyOf(): Promise<Vocabulary> {
    if (this.#vocabulary !== undefined) return this.#vocabulary
    const { vocabularySize, endOfSequence } = this.model
    const reading = this.tokenizer.vocabulary({
      endOfSequence: [...endOfSequence, ...this.#ends],
      ...given({ size: vocabularySize }),
    })
    this.#vocabulary = reading
    reading.catch(() => (this.#vocabulary = undefined))
    return reading
  }
}

/** The graph, the folder with the tokenizer, and the name. */
interface Place {
  readonly graph: string
  /** True if `graph` was chosen by its dtype in a repository. */
  readonly isChosen: boolean
  readonly folder: string
  readonly name: string
}

const EXPECTED = "a folder, the path of a graph, a file: URL, or a name on the Hub: 'org/name'"

async function placeOf(model: unknown, hub: object): Promise<Place> {
  const path = pathOf(model)
  const found = statSync(path, { throwIfNoEntry: false })
  if (found?.isDirectory() === true) {
    const folder = resolve(path)
    return { graph: folder, isChosen: false, folder, name: nameOf(folder) }
  }
  if (found !== undefined) {
    const folder = dirname(resolve(path))
    return { graph: path, isChosen: false, folder, name: nameOf(folder) }
  }
  if (!isHubName(path)) throw invalid('model', model, `${EXPECTED}; there is no such file`)
  const { folder, graph } = await findModel(path, hub).catch((error: unknown) => {
    throw orNoFolder(path, error)
  })
  if (graph === undefined) throw invalid('model', model, 'a model with a graph')
  const [name = ''] = path.split('@')
  return { graph, isChosen: true, folder, name }
}

/** The error of a name on the Hub that may have been meant as the path of a folder. */
function orNoFolder(path: string, error: unknown): unknown {
  if (!isKvTideError(error) || (error.code !== 'HUB_UNAVAILABLE' && error.code !== 'MODEL_NOT_FOUND')) return error
  const { code, message, details, cause } = error
  return new KvTideError(code, line(`there is no folder ${path}; ${message}`, 299), details, { cause })
}

function pathOf(model: unknown): string {
  if (typeof model !== 'string' && !(isObject(model) && model instanceof URL)) throw invalid('model', model, EXPECTED)
  if (model === '' || (typeof model === 'string' && model.includes('\0'))) throw invalid('model', model, EXPECTED)
  if (typeof model === 'string' && !/^file:/i.test(model)) return model
  try {
    return fileURLToPath(model)
  } catch {
    throw invalid('model', String(model), EXPECTED)
  }
}

/** The name of a folder; that of the one above, for a folder of graphs. */
function nameOf(folder: string): string {
  return basename(basename(folder) === 'onnx' ? dirname(folder) : folder)
}

function specialsOf(codec: Codec): Record<string, unknown> {
  return given(Object.fromEntries(SPECIALS.map(name => [`${name}_token`, codec.special(name)])))
}

/** The options with these names that are not `undefined`. */
function pick(values: Readonly<Record<string, unknown>>, names: object): Record<string, unknown> {
  return given(Object.fromEntries(Object.keys(names).map(name => [name, values[name]])))
}

/** The fields that are not `undefined`. */
function given(values: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined))
}

/** The OnnxModel of a TextModel; `undefined` if the value is not a TextModel. */
function onnxModelOf(model: unknown): OnnxModel | undefined {
  return isObject(model) && model instanceof TextModel ? model.model : undefined
}
