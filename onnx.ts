/**
 * kvtide/onnx: runs language models in ONNX files over a paged KV cache, with the onnxruntime that `onnxruntime-node` brings: batched generation, prefix caching,
 * speculative decoding.
 *
 * @packageDocumentation
 */
export type { BackendName } from './lib/onnx/backend.js'
export type { CrossCacheStats } from './lib/onnx/cross-cache.js'
export { type EncoderInput, type EncoderOutput, Encoding, type TensorLike } from './lib/onnx/encoding.js'
export { Generation, type FinishReason } from './lib/onnx/generation.js'
export type { AccuracyLevel } from './lib/onnx/graph-source.js'
export type { BackendRefusal } from './lib/onnx/load.js'
export { type Encoded, type GenerateOptions, type OnnxAdmission, OnnxModel } from './lib/onnx/model.js'
export type { GraphDType } from './lib/onnx/model-folder.js'
export type {
  CheckpointsOption,
  EmbedsOption,
  GenerateOptionsOf,
  OnnxCacheOptions,
  OnnxModelOptions,
  OpenOptions,
  RunEntry,
  RunOptions,
} from './lib/onnx/options.js'
export { OnnxPast, type OnnxPastOptions, type OnnxResumed } from './lib/onnx/past.js'
export type { OnnxNames, OnnxSession } from './lib/onnx/ports.js'
export { OnnxSequence } from './lib/onnx/sequence.js'
export type { EmbedSpan } from './lib/onnx/spans.js'
export type { Usage } from './lib/onnx/usage.js'
export type { Grammar } from './lib/sampling/grammar.js'
export { type TokensOptions, Vocabulary, type VocabularyOptions } from './lib/sampling/vocabulary.js'
export type { AllowedTokens, SamplingOptions, TokenLogprobs } from './lib/sampling/options.js'
