// The demo's model, behind the provider.
import { fileURLToPath } from 'node:url'

import type {
  LanguageModelV4CallOptions,
  LanguageModelV4FunctionTool,
  LanguageModelV4StreamPart,
} from '@ai-sdk/provider'
import { TextModel } from 'kvtide/text'

export const DEMO: string = fileURLToPath(new URL('../../packages/serve/demo', import.meta.url))

/** Loads the demo's model, with one thread. */
export function demo(): Promise<TextModel> {
  return TextModel.load(DEMO, { threads: 1, cache: { memoryBytes: 2 ** 25 } })
}

/** Returns the options of a call with one question, and no randomness. */
export function question(text: string, options: Partial<LanguageModelV4CallOptions> = {}): LanguageModelV4CallOptions {
  return { prompt: [{ role: 'user', content: [{ type: 'text', text }] }], temperature: 0, ...options }
}

/** Reads a stream to its end. */
export async function partsOf(stream: ReadableStream<LanguageModelV4StreamPart>): Promise<LanguageModelV4StreamPart[]> {
  const parts: LanguageModelV4StreamPart[] = []
  for await (const part of stream) parts.push(part)
  return parts
}

/** A tool that the demo's model has learned to call. */
export const WEATHER: LanguageModelV4FunctionTool = {
  type: 'function',
  name: 'weather',
  description: 'Returns the weather in a city.',
  inputSchema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}
