// kvtide/text: text in and out of an OnnxModel.
import { KvTideError } from '../errors/errors.js'
import type { OnnxModel } from '../onnx/model.js'
import type { TextGeneration } from './text-generation.js'
import type { TextTokenizer } from './tokenizer.js'
import type { ChatOptions, CompleteOptions, TextModelOptions, ToolFamily } from './types.js'

const unfinished = (): never => {
  throw new KvTideError('INTERNAL', 'kvtide/text is not built yet', {})
}

/** A language model that reads and writes text. */
export class TextModel implements AsyncDisposable, Disposable {
  /** The model behind it: its cache, its statistics. It is disposed of with this one. */
  declare readonly model: OnnxModel
  declare readonly tokenizer: TextTokenizer
  /** The name that it was loaded by: `org/name`, or the folder's name. */
  declare readonly name: string
  /** As {@link OnnxModel.contextLength}. */
  declare readonly contextLength: number | undefined
  /** True if it has a chat template. */
  declare readonly hasTemplate: boolean
  /** The form in which its template's model calls tools; `undefined` if the template takes no tools. */
  declare readonly toolFamily: ToolFamily | undefined

  /**
   * Loads a model: a folder, a file, a `file:` URL of these, or a name on the Hub, `'org/name'` or `'org/name@revision'`.
   */
  static async load(_model: string | URL, _options: TextModelOptions = {}): Promise<TextModel> {
    return unfinished()
  }

  /** Answers the messages of a chat. Computing starts with the first read. Wrong options are thrown at once, all other errors by the first read. */
  chat(_options: ChatOptions): TextGeneration {
    return unfinished()
  }

  /** Continues a text, without a template. */
  complete(_options: CompleteOptions): TextGeneration {
    return unfinished()
  }

  /** Returns the text of a chat that the template makes, up to the place of the answer. */
  render(_options: Pick<ChatOptions, 'messages' | 'tools' | 'templateOptions'>): string {
    return unfinished()
  }

  /** Disposes of the model: see `dispose` of `OnnxModel`. */
  async dispose(): Promise<void> {
    return unfinished()
  }

  /** As {@link dispose}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    return unfinished()
  }

  /** As {@link dispose}, for `using`, which does not wait for the end. */
  [Symbol.dispose](): void {
    return unfinished()
  }
}
