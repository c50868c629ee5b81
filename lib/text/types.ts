// The public types of `kvtide/text`. Messages, tools and calls have the shape of OpenAI's API, so that what a client sends or gets passes unchanged.
import type { OnnxModel } from '../onnx/model.js'
import type { OnnxModelOptions } from '../onnx/options.js'
import type { Usage } from '../onnx/usage.js'
import type { Grammar } from '../sampling/grammar.js'
import type { SamplingOptions } from '../sampling/options.js'
import type { TokenIds } from '../sequences/tokens.js'
import type { DownloadOptions } from './hub/settings.js'

/** A part of a message's content. */
export interface TextPart {
  readonly type: 'text'
  readonly text: string
}

/** A call of a tool, as the model wrote it. `arguments` is JSON. */
export interface ToolCall {
  readonly id: string
  readonly type: 'function'
  readonly function: { readonly name: string; readonly arguments: string }
}

/** A message of a chat, in the shape of OpenAI's API. */
export interface ChatMessage {
  /** `developer` means `system`. */
  readonly role: 'system' | 'developer' | 'user' | 'assistant' | 'tool'
  /** The text, or parts of it, which are joined. `null` only for an assistant that called tools. */
  readonly content?: string | readonly TextPart[] | null
  /** The calls of an assistant. */
  readonly tool_calls?: readonly ToolCall[]
  /** The call that a message of the role `tool` answers. */
  readonly tool_call_id?: string
  /** The name of the tool, or of the speaker, for templates that show it. */
  readonly name?: string
  /** The reasoning before an answer, for templates that show it. */
  readonly reasoning_content?: string
}

/** The answer as a message, to be put behind the other messages. */
export interface AssistantMessage extends ChatMessage {
  readonly role: 'assistant'
  /** The text; `null` if there is none beside calls. */
  readonly content: string | null
}

/** A tool that the model may call, in the shape of OpenAI's API. */
export interface Tool {
  readonly type: 'function'
  readonly function: {
    readonly name: string
    readonly description?: string
    /** The JSON schema of the arguments, an object. */
    readonly parameters?: object
    /** True if arguments must match the schema. A call that is forced always does. */
    readonly strict?: boolean
  }
}

/** The calls that are allowed: as the model likes, none, at least one, or one of this tool. */
export type ToolChoice = 'auto' | 'none' | 'required' | { readonly name: string }

/** The form in which a template's model writes calls. */
export type ToolFamily = 'hermes' | 'qwen3-coder' | 'llama3' | 'mistral' | 'granite' | 'gpt-oss' | 'deepseek'

/** Options of {@link TextModel.load}: those of {@link OnnxModel.load}, and those of {@link downloadModel} for a name on the Hub. */
export interface TextModelOptions extends OnnxModelOptions, Omit<DownloadOptions, 'dtype'> {
  /** The chat template, in place of the model's own: its Jinja text, or the name of one of several in `tokenizer_config.json`. */
  readonly template?: string
}

/** Options of {@link TextModel.chat} and {@link TextModel.complete}. */
export interface TextOptions extends Omit<SamplingOptions, 'allowed'> {
  /** The maximum number of tokens to generate; by default as many as fit. */
  readonly maxTokens?: number
  /** Texts that end the answer, and are no part of it: one, or up to 64. */
  readonly stop?: string | readonly string[]
  /** Ids that end the answer, besides those that the model's configs name. */
  readonly stopTokens?: readonly number[]
  /** True to generate past the ids that the model's configs name as the end; false by default. */
  readonly ignoreEndOfSequence?: boolean
  /** A JSON schema that the answer matches, unless it calls tools. */
  readonly schema?: object
  /** A grammar that the answer matches; excludes `schema`. Only one of JSON leaves the choice of calling tools. */
  readonly grammar?: Grammar
  /** Aborts the generation: the next read is then refused with `ABORTED`. */
  readonly signal?: AbortSignal
  /** Drafts tokens: see `draft` of `OnnxModel.generate`. A `TextModel` stands for its `model`. */
  readonly draft?: 'lookup' | { readonly lookup: number } | OnnxModel | DraftOptions
  /** The tenant. Prompts and conversations match only those with the same salt. */
  readonly salt?: string | Uint8Array
  /** The first position, in tokens, that the salt applies to; 0 by default. */
  readonly saltFrom?: number
  /** Positions at which later prompts may differ, besides the ends of messages: see `checkpoints` of `OnnxModel.open`. */
  readonly checkpoints?: readonly number[]
}

/** A second model that drafts, and the maximum number of tokens at once. A `TextModel` is one as well. */
export interface DraftOptions {
  readonly model: OnnxModel | { readonly model: OnnxModel }
  readonly tokens?: number
}

/** Options of {@link TextModel.chat}. */
export interface ChatOptions extends TextOptions {
  /** The messages so far, the last one usually of the user or of a tool. */
  readonly messages: readonly ChatMessage[]
  /** The tools that the model may call. */
  readonly tools?: readonly Tool[]
  /** The calls that are allowed; `'auto'` by default. */
  readonly toolChoice?: ToolChoice
  /** Further variables of the template: `{ enable_thinking: false }`. */
  readonly templateOptions?: Readonly<Record<string, unknown>>
}

/** Options of {@link TextModel.complete}. */
export interface CompleteOptions extends TextOptions {
  /** The text to continue, or its ids. */
  readonly prompt: string | TokenIds
}

/** The log-probability of a token, with its text. */
export interface TextLogprob {
  readonly token: number
  /** The token's own text; U+FFFD in place of incomplete characters. */
  readonly text: string
  /** The token's bytes. */
  readonly bytes: Uint8Array
  readonly logprob: number
}

/** The log-probabilities of a token and of the most probable ones in its place. */
export interface TextLogprobs extends TextLogprob {
  readonly top: readonly TextLogprob[]
}

/** The reason for the end of an answer. */
export type TextFinishReason = 'stop' | 'length' | 'tool_calls'

/** A part of an answer. */
export type TextEvent =
  | {
      readonly type: 'text' | 'reasoning'
      /** May be empty if a token has no text of its own yet. */
      readonly text: string
      /** The tokens since the last event. */
      readonly tokens: readonly number[]
      /** With the option `logprobs`, those of `tokens`. */
      readonly logprobs?: readonly TextLogprobs[]
    }
  | { readonly type: 'tool-call'; readonly index: number; readonly id: string; readonly name: string }
  /** A delta of the JSON of a call's arguments. */
  | { readonly type: 'tool-arguments'; readonly index: number; readonly text: string }
  | { readonly type: 'finish'; readonly finishReason: TextFinishReason; readonly usage: Usage }
