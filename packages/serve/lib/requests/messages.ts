// Messages of a chat and tools, in OpenAI's form: checked here, and passed on unchanged but for what the model cannot use.
import type { ChatMessage, TextPart, Tool, ToolCall, ToolChoice } from 'kvtide/text'

import { Refusal, wrong } from '../refusal.js'
import { defined, type Fields, flag, given, group, record, words } from './fields.js'

const ROLES: readonly string[] = ['system', 'developer', 'user', 'assistant', 'tool']

/** The maximum number of messages and of tools, so that a small body cannot cost much. */
const LIST_MAX = 4096

const NAME = /^[\w-]{1,64}$/

/** Reads the messages of a chat. */
export function readMessages(fields: Fields): ChatMessage[] {
  const value = given(fields, 'messages')
  if (!Array.isArray(value) || value.length === 0 || value.length > LIST_MAX)
    throw wrong('messages', value, `a list of 1 to ${LIST_MAX} messages`)
  return value.map((message: unknown, index) => readMessage(message, `messages[${index}]`))
}

function readMessage(value: unknown, param: string): ChatMessage {
  const message = record(value)
  if (message === undefined) throw wrong(param, value, 'an object with role and content')
  const role = given(message, 'role')
  if (typeof role !== 'string' || !ROLES.includes(role))
    throw wrong(`${param}.role`, role, `one of ${ROLES.join(', ')}`)
  const calls = role === 'assistant' ? readCalls(message, `${param}.tool_calls`) : undefined
  for (const name of ['audio', 'function_call'] as const) {
    if (given(message, name) !== undefined)
      throw new Refusal(400, `${param}.${name} is not supported`, `${param}.${name}`, 'unsupported_parameter')
  }
  const hasOther = calls !== undefined || given(message, 'refusal') !== undefined
  const content = readContent(message, param, role === 'assistant' && hasOther)
  const callId = words(message, 'tool_call_id', `${param}.tool_call_id`)
  if (role === 'tool' && callId === undefined)
    throw wrong(`${param}.tool_call_id`, undefined, 'the id of the call that the message answers')
  return defined({
    role: role as ChatMessage['role'],
    content,
    tool_calls: calls,
    tool_call_id: role === 'tool' ? callId : undefined,
    name: words(message, 'name', `${param}.name`),
    reasoning_content: role === 'assistant' ? reasoningOf(message, param) : undefined,
  }) as ChatMessage
}

/** The reasoning of an assistant, by DeepSeek's name or by vLLM's newer one. */
function reasoningOf(message: Fields, param: string): string | undefined {
  return (
    words(message, 'reasoning_content', `${param}.reasoning_content`) ??
    words(message, 'reasoning', `${param}.reasoning`)
  )
}

/** Returns a text, or a list of text parts. */
function readContent(message: Fields, param: string, isOptional: boolean): string | TextPart[] | null {
  const name = `${param}.content`
  const content = given(message, 'content')
  if (content === undefined && isOptional) return null
  if (typeof content === 'string') return words(message, 'content', name) as string
  if (!Array.isArray(content) || content.length === 0 || content.length > LIST_MAX)
    throw wrong(name, content, `a text, or a list of 1 to ${LIST_MAX} parts`)
  return content.flatMap((value: unknown, index): TextPart[] => {
    const part = record(value)
    if (part === undefined) throw wrong(`${name}[${index}]`, value, 'an object with type and text')
    const type = given(part, 'type')
    // A refusal of an earlier answer is text that the model wrote.
    if (type !== 'text' && type !== 'refusal')
      throw wrong(`${name}[${index}].type`, type, 'text: the model reads text only')
    const text = words(part, type, `${name}[${index}].${type}`)
    if (text === undefined) throw wrong(`${name}[${index}].${type}`, text, 'a text')
    return [{ type: 'text', text }]
  })
}

function readCalls(message: Fields, param: string): ToolCall[] | undefined {
  const value = given(message, 'tool_calls')
  if (value === undefined) return undefined
  if (!Array.isArray(value) || value.length > LIST_MAX) throw wrong(param, value, `a list of at most ${LIST_MAX} calls`)
  if (value.length === 0) return undefined
  return value.map((each: unknown, index) => {
    const [name, call] = [`${param}[${index}]`, record(each)]
    if (call === undefined) throw wrong(name, each, 'an object with id, type and function')
    const id = words(call, 'id', `${name}.id`)
    if (id === undefined) throw wrong(`${name}.id`, id, 'a text')
    if (given(call, 'type') !== 'function') throw wrong(`${name}.type`, given(call, 'type'), 'function')
    const called = group(call, 'function', `${name}.function`)
    const [calledName, text] = [
      words(called ?? {}, 'name', `${name}.function.name`),
      words(called ?? {}, 'arguments', `${name}.function.arguments`),
    ]
    if (calledName === undefined || text === undefined)
      throw wrong(`${name}.function`, called, 'an object with name and arguments')
    return { id, type: 'function', function: { name: calledName, arguments: text } }
  })
}

/** The tools of a request, and which calls are allowed. */
export interface ToolUse {
  readonly tools?: readonly Tool[]
  readonly toolChoice?: ToolChoice
  /** False if at most one call may be made. */
  readonly isParallel: boolean
}

/** Reads the tools of a request. */
export function readTools(fields: Fields): ToolUse {
  const value = given(fields, 'tools')
  const isParallel = given(fields, 'parallel_tool_calls') === undefined || flag(fields, 'parallel_tool_calls')
  const hasNone = value === undefined || (Array.isArray(value) && value.length === 0)
  if (!hasNone && (!Array.isArray(value) || value.length > LIST_MAX))
    throw wrong('tools', value, `a list of at most ${LIST_MAX} tools`)
  const tools = hasNone ? undefined : (value as unknown[]).map((tool, index) => readTool(tool, `tools[${index}]`))
  const choice = readChoice(given(fields, 'tool_choice'), tools ?? [])
  if (tools === undefined && choice !== undefined && choice !== 'none' && choice !== 'auto')
    throw wrong('tool_choice', choice, 'none or auto without tools')
  return {
    ...(tools === undefined ? {} : { tools, ...(choice === undefined ? {} : { toolChoice: choice }) }),
    isParallel,
  }
}

function readTool(value: unknown, param: string): Tool {
  const tool = record(value)
  if (tool === undefined) throw wrong(param, value, 'an object with type and function')
  if (given(tool, 'type') !== 'function')
    throw wrong(`${param}.type`, given(tool, 'type'), 'function: other kinds of tools are not supported')
  const called = group(tool, 'function', `${param}.function`)
  if (called === undefined) throw wrong(`${param}.function`, undefined, 'an object with a name')
  const name = words(called, 'name', `${param}.function.name`)
  if (name === undefined || !NAME.test(name))
    throw wrong(`${param}.function.name`, name, 'a name of 1 to 64 letters, digits, _ and -')
  const isStrict =
    given(called, 'strict') === undefined ? undefined : flag(called, 'strict', `${param}.function.strict`)
  return {
    type: 'function',
    function: defined({
      name,
      description: words(called, 'description', `${param}.function.description`),
      parameters: group(called, 'parameters', `${param}.function.parameters`),
      strict: isStrict,
    }) as Tool['function'],
  }
}

function readChoice(value: unknown, tools: readonly Tool[]): ToolChoice | undefined {
  if (value === undefined || value === 'auto' || value === 'none' || value === 'required') return value
  const choice = record(value)
  if (choice === undefined || given(choice, 'type') !== 'function')
    throw wrong('tool_choice', value, 'auto, none, required, or { type: "function", function: { name } }')
  const name = words(group(choice, 'function', 'tool_choice.function') ?? {}, 'name', 'tool_choice.function.name')
  if (name === undefined || !tools.some(tool => tool.function.name === name))
    throw wrong('tool_choice.function.name', name, 'the name of one of the tools')
  return { name }
}
