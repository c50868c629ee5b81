/**
 * kvtide/text: chat and text completion with language models in ONNX files: tokenizers, chat templates, streaming, conversations, tools.
 *
 * @packageDocumentation
 */
export { downloadModel } from './lib/text/hub/hub.js'
export type { GraphDType } from './lib/onnx/model-folder.js'
export type { DownloadOptions, DownloadProgress, DownloadRetry } from './lib/text/hub/settings.js'
export { TextGeneration } from './lib/text/text-generation.js'
export { TextModel } from './lib/text/text-model.js'
export type { Detokenizer } from './lib/text/detokenizer.js'
export type { RenderOptions } from './lib/text/options.js'
export { type DecodeOptions, type EncodeOptions, TextTokenizer } from './lib/text/tokenizer.js'
export type {
  AssistantMessage,
  ChatMessage,
  ChatOptions,
  CompleteOptions,
  DraftOptions,
  TextEvent,
  TextFinishReason,
  TextLogprob,
  TextLogprobs,
  TextModelOptions,
  TextOptions,
  TextPart,
  Tool,
  ToolCall,
  ToolChoice,
  ToolFamily,
} from './lib/text/types.js'
export type { Usage } from './lib/onnx/usage.js'
export type { TokenIds } from './lib/sequences/tokens.js'
export type { Grammar } from './lib/sampling/grammar.js'
export { Vocabulary, type VocabularyOptions } from './lib/sampling/vocabulary.js'
