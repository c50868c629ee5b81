/**
 * kvtide/text: chat and text completion with language models in ONNX files: tokenizers, chat templates, streaming, conversations, tools.
 *
 * @packageDocumentation
 */
export { TextGeneration } from './lib/text/text-generation.js'
export { TextModel } from './lib/text/text-model.js'
export { type Detokenizer, TextTokenizer } from './lib/text/tokenizer.js'
export type {
  AssistantMessage,
  ChatMessage,
  ChatOptions,
  CompleteOptions,
  DownloadProgress,
  DraftOptions,
  Grammar,
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
  Usage,
} from './lib/text/types.js'
