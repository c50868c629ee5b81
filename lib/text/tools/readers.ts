// The reader of a family's calls.
import type { Tool, ToolFamily } from '../types.js'
import { type CallReader, JsonCalls, MistralCalls } from './call-reader.js'
import type { CallList } from './parts.js'
import { DeepSeekCalls, TaggedCalls } from './tagged-reader.js'

/** @internal The reader of what follows `opener`. */
export function readerOf(family: ToolFamily, opener: string, calls: CallList, tools: readonly Tool[]): CallReader {
  switch (family) {
    case 'qwen3-coder':
      return new TaggedCalls(calls, tools, opener)
    case 'mistral':
      return new MistralCalls(calls)
    case 'deepseek':
      return new DeepSeekCalls(calls)
    case 'llama3':
      return new JsonCalls(calls, { between: ';', isBare: true })
    case 'granite':
      return new JsonCalls(calls, { isList: true, ...(opener === '<tool_call>' ? { close: '</tool_call>' } : {}) })
    default:
      return new JsonCalls(calls, { close: '</tool_call>' })
  }
}
