// Prompts of the AI SDK as messages of a chat.
import {
  type LanguageModelV4FilePart,
  type LanguageModelV4Message,
  type LanguageModelV4Prompt,
  type LanguageModelV4ToolResultOutput,
  UnsupportedFunctionalityError,
} from '@ai-sdk/provider'
import type { ChatMessage, ToolCall } from 'kvtide/text'

import { invalidPrompt, isList, isObject } from './arguments.js'

type Assistant = Extract<LanguageModelV4Message, { role: 'assistant' }>
type Results = Extract<LanguageModelV4Message, { role: 'tool' }>

/** Returns the messages of a prompt. A part that the model can't read is refused, because an answer without it would be wrong. */
export function messagesOf(prompt: LanguageModelV4Prompt): ChatMessage[] {
  if (!isList(prompt)) throw invalidPrompt(prompt, 'prompt', prompt, 'an array of messages')
  return prompt.flatMap((message, place): ChatMessage[] => {
    checkMessage(prompt, `prompt[${place}]`, message)
    switch (message.role) {
      case 'system':
        return [{ role: 'system', content: message.content }]
      case 'user':
        return [
          {
            role: 'user',
            content: message.content.map(part => (part.type === 'text' ? part.text : textOf(part))).join(''),
          },
        ]
      case 'assistant':
        return [assistant(message)]
      case 'tool':
        return results(message)
      default:
        throw invalidPrompt(
          prompt,
          `prompt[${place}].role`,
          (message as { role: unknown }).role,
          'system, user, assistant or tool',
        )
    }
  })
}

/** Checks the form of a message. The model checks its texts. */
function checkMessage(prompt: unknown, argument: string, message: unknown): void {
  if (!isObject(message)) throw invalidPrompt(prompt, argument, message, 'a message')
  const { role, content } = message as { readonly role?: unknown; readonly content?: unknown }
  if (role === 'system') {
    if (typeof content !== 'string') throw invalidPrompt(prompt, `${argument}.content`, content, 'a string')
    return
  }
  if (!isList(content)) throw invalidPrompt(prompt, `${argument}.content`, content, 'an array of parts')
  for (const [place, part] of content.entries())
    checkPart(prompt, `${argument}.content[${place}]`, part, role === 'user')
}

function checkPart(prompt: unknown, argument: string, part: unknown, isUser: boolean): void {
  if (!isObject(part)) throw invalidPrompt(prompt, argument, part, 'a part')
  const given = part as Readonly<Record<string, unknown>>
  const { type } = given
  if (typeof type !== 'string' || (isUser && type !== 'text' && type !== 'file'))
    throw invalidPrompt(prompt, `${argument}.type`, type, isUser ? 'text or file' : 'a string')
  if ((type === 'text' || type === 'reasoning') && typeof given['text'] !== 'string')
    throw invalidPrompt(prompt, `${argument}.text`, given['text'], 'a string')
  if (type !== 'file') return
  const { data, mediaType } = given
  if (!isObject(data)) throw invalidPrompt(prompt, `${argument}.data`, data, 'an object with a type')
  if (typeof mediaType !== 'string') throw invalidPrompt(prompt, `${argument}.mediaType`, mediaType, 'a string')
}

function assistant({ content }: Assistant): ChatMessage {
  const of = (type: 'text' | 'reasoning'): string => content.map(part => (part.type === type ? part.text : '')).join('')
  const calls = content.flatMap((part): ToolCall[] => {
    if (part.type === 'text' || part.type === 'reasoning') return []
    if (part.type !== 'tool-call') throw unsupported(`a part of the type '${part.type}' in an assistant's message`)
    const { toolCallId, toolName, input } = part
    const json = typeof input === 'string' ? input : JSON.stringify(input ?? {})
    return [{ id: toolCallId, type: 'function', function: { name: toolName, arguments: json } }]
  })
  const [text, reasoning] = [of('text'), of('reasoning')]
  return {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
  }
}

/** Returns a message for each result. Approvals are the AI SDK's own business: it runs the tool, or sends a denial as the result. */
function results({ content }: Results): ChatMessage[] {
  return content.flatMap((part): ChatMessage[] =>
    part.type === 'tool-result'
      ? [{ role: 'tool', tool_call_id: part.toolCallId, name: part.toolName, content: shown(part.output) }]
      : [],
  )
}

function shown(output: LanguageModelV4ToolResultOutput): string {
  switch (output.type) {
    case 'text':
    case 'error-text':
      return output.value
    case 'json':
    case 'error-json':
      return JSON.stringify(output.value)
    case 'execution-denied':
      return output.reason === undefined ? 'The call was denied.' : `The call was denied: ${output.reason}`
    case 'content':
      return output.value
        .map(part => {
          if (part.type === 'text') return part.text
          if (part.type === 'file') return textOf({ ...part, type: 'file' })
          throw unsupported(`a part of the type '${part.type}' in a tool's result`)
        })
        .join('')
  }
}

/** Returns the text of a file; all other files are refused. */
function textOf({ data, mediaType }: LanguageModelV4FilePart): string {
  if (data.type === 'text') return data.text
  if (data.type === 'data' && mediaType.startsWith('text/'))
    return typeof data.data === 'string'
      ? Buffer.from(data.data, 'base64').toString('utf8')
      : new TextDecoder().decode(data.data)
  throw unsupported(`a file of the type ${mediaType}`)
}

const unsupported = (functionality: string): UnsupportedFunctionalityError =>
  new UnsupportedFunctionalityError({
    functionality,
    message: `a language model of kvtide reads text alone, but the prompt has ${functionality}`,
  })
