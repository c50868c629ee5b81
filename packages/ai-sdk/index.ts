/**
 * kvtide-ai-sdk: ONNX language models in this process as models of the AI SDK.
 *
 * @packageDocumentation
 */
export type { CallSettings } from './lib/call-settings.js'
export { KvtideLanguageModel } from './lib/language-model.js'
export { createKvtide, kvtide, type KvtideProvider } from './lib/provider.js'
