// Messages and tools as callers give them: their checks, and their form in templates.
//
// Fields that OpenAI's clients send and that don't change the answer are ignored. Anything else that a text model cannot do is refused by its place:
// `messages[2].content[0].type`.
import { fields, flag, isArray, list, optional, text as string } from '../errors/check.js'
import { invalid, messageOf } from '../errors/errors.js'
import { isFields } from './files.js'
import type { ChatTemplate } from './template.js'
import type { ChatMessage, TextPart, Tool, ToolCall, ToolChoice } from './types.js'

/** @internal A message after its check: the content is one text. */
export interface ReadMessage {
  readonly role: ChatMessage['role']
  readonly content: string
  readonly tool_calls?: readonly ToolCall[]
  readonly tool_call_id?: string
  readonly name?: string
  readonly reasoning_content?: string
}

const ROLES: readonly unknown[] = ['system', 'developer', 'user', 'assistant', 'tool']
const NAME_MAX = 256

/** @internal Checks messages, and copies them. */
export function readMessages(messages: unknown): ReadMessage[] {
  if (!isArray(messages)) throw invalid('messages', messages, 'an array of { role, content }')
  if (messages.length === 0) throw invalid('messages.length', 0, 'at least 1: what should be answered?')
  return list('messages', messages, readMessage)
}

function readMessage(argument: string, value: unknown): ReadMessage {
  const given = fields<ChatMessage>(argument, value)
  const { role, content, tool_calls, tool_call_id, name, reasoning_content } = given
  if (!ROLES.includes(role)) throw invalid(`${argument}.role`, role, ROLES.join(', '))
  const isAssistant = role === 'assistant'
  const calls =
    tool_calls === undefined || tool_calls === null ? undefined : readCalls(`${argument}.tool_calls`, tool_calls)
  if (calls !== undefined && !isAssistant)
    throw invalid(`${argument}.tool_calls`, tool_calls, 'none: only messages of the role assistant have calls')
  const isEmpty = content === null || content === undefined
  if (isEmpty && !isAssistant) throw invalid(`${argument}.content`, content, 'a string, or an array of { type, text }')
  const read = {
    tool_call_id: optionalString(`${argument}.tool_call_id`, tool_call_id),
    name: optionalString(`${argument}.name`, name),
    reasoning_content: optionalString(`${argument}.reasoning_content`, reasoning_content),
    tool_calls: calls?.length === 0 ? undefined : calls,
  }
  const known = Object.fromEntries(Object.entries(read).filter(([, field]) => field !== undefined))
  return {
    role: role as ChatMessage['role'],
    content: isEmpty ? '' : readContent(`${argument}.content`, content),
    ...known,
  }
}

const optionalString = (argument: string, value: unknown): string | undefined =>
  value === null ? undefined : optional(string, argument, value)

function readContent(argument: string, content: unknown): string {
  if (typeof content === 'string') return content
  if (!isArray(content)) throw invalid(argument, content, 'a string, or an array of { type, text }')
  return list(argument, content, readPart).join('')
}

function readPart(argument: string, value: unknown): string {
  if (typeof value === 'string') return value
  const { type, text } = fields<TextPart>(argument, value)
  if (type !== 'text')
    throw invalid(`${argument}.type`, type, "'text': this model reads text only, no images, audio or files")
  return string(`${argument}.text`, text)
}

function readCalls(argument: string, calls: unknown): ToolCall[] {
  if (!isArray(calls)) throw invalid(argument, calls, 'an array of { id, type, function }')
  return list(argument, calls, (place, value) => {
    const { id, type, function: called } = fields<ToolCall>(place, value)
    if (type !== undefined && type !== 'function') throw invalid(`${place}.type`, type, "'function'")
    const { name, arguments: json } = fields<ToolCall['function']>(`${place}.function`, called)
    return {
      id: optionalString(`${place}.id`, id) ?? '',
      type: 'function',
      function: {
        name: string(`${place}.function.name`, name),
        arguments: string(`${place}.function.arguments`, json),
      },
    }
  })
}

/** @internal Checks tools, and copies them. Returns `undefined` for none. */
export function readTools(tools: unknown): readonly Tool[] | undefined {
  if (tools === undefined) return undefined
  if (!isArray(tools))
    throw invalid('tools', tools, "an array of { type: 'function', function: { name, description, parameters } }")
  const read = list('tools', tools, readTool)
  const names = read.map(tool => tool.function.name)
  const twice = names.findIndex((name, place) => names.indexOf(name) < place)
  if (twice >= 0) throw invalid(`tools[${twice}].function.name`, names[twice], 'a name that no other tool has')
  return read.length === 0 ? undefined : read
}

function readTool(argument: string, value: unknown): Tool {
  const { type, function: given } = fields<Tool>(argument, value)
  if (type !== 'function') throw invalid(`${argument}.type`, type, "'function'")
  const place = `${argument}.function`
  const { name, description, parameters, strict } = fields<Tool['function']>(place, given)
  if (typeof name !== 'string' || name === '' || name.length > NAME_MAX || /[\s"'\\<>{}]/.test(name))
    throw invalid(`${place}.name`, name, `a name of 1 to ${NAME_MAX} characters, without spaces, quotes and brackets`)
  const about = optionalString(`${place}.description`, description)
  if (strict !== undefined && strict !== null) flag(`${place}.strict`, strict)
  if (parameters !== undefined && parameters !== null && !isFields(parameters))
    throw invalid(`${place}.parameters`, parameters, 'a JSON schema, an object')
  return {
    type,
    function: {
      name,
      ...(about === undefined ? {} : { description: about }),
      parameters: isFields(parameters) ? copied(`${place}.parameters`, parameters) : { type: 'object', properties: {} },
    },
  }
}

/** @internal A copy of a value that JSON can write. */
export function copied(argument: string, value: object): object {
  try {
    return JSON.parse(JSON.stringify(value)) as object
  } catch (cause) {
    throw invalid(argument, value, `a value that JSON can write (${messageOf(cause)})`)
  }
}

/** @internal Checks the calls that are allowed. */
export function readToolChoice(choice: unknown, tools: readonly Tool[] | undefined): ToolChoice {
  if (choice === undefined || choice === 'auto' || choice === 'none') return choice ?? 'auto'
  const name = isFields(choice) ? choice['name'] : undefined
  if (choice !== 'required' && typeof name !== 'string')
    throw invalid('toolChoice', choice, "'auto', 'none', 'required' or { name }")
  if (tools === undefined) throw invalid('toolChoice', choice, "'auto' or 'none': no tools were given")
  if (typeof name !== 'string') return 'required'
  if (tools.some(tool => tool.function.name === name)) return { name }
  throw invalid('toolChoice.name', name, `the name of a tool: ${tools.map(tool => tool.function.name).join(', ')}`)
}

/** The sign of a template that joins the arguments of calls with other text, as DeepSeek's do: it needs their JSON. */
const JOINS_ARGUMENTS = /(?:\.arguments|\[['"]arguments['"]\])\s*[+~]/
/** The sign of a template that writes calls only if there is no content, as DeepSeek's older ones do. */
const TESTS_CONTENT = /\bcontent(?:['"]\])?\s+is\s+none\b/

/** @internal Messages in the form that a template expects: arguments of calls as objects or as JSON, and only fields that are there. */
export function inTemplate(messages: readonly ReadMessage[], template: Pick<ChatTemplate, 'mentions'>): object[] {
  const isJoined = template.mentions(JOINS_ARGUMENTS)
  const knowsNone = template.mentions(TESTS_CONTENT)
  const isDeveloper = template.mentions('developer')
  const isThinking = template.mentions('.thinking')
  return messages.map(({ role, content, tool_calls, reasoning_content, ...rest }) => ({
    content: knowsNone && tool_calls !== undefined && content === '' ? null : content,
    ...rest,
    role: role === 'developer' && !isDeveloper ? 'system' : role,
    ...(tool_calls === undefined
      ? {}
      : { tool_calls: isJoined ? tool_calls.map(jsonCall) : tool_calls.map(parsedCall) }),
    ...(reasoning_content === undefined ? {} : { reasoning_content }),
    ...(reasoning_content === undefined || !isThinking ? {} : thinkingOf(reasoning_content, content, tool_calls)),
  }))
}

/** The reasoning by its name in the templates of gpt-oss. They refuse reasoning and text in front of a call, and write either as reasoning. */
function thinkingOf(reasoning: string, content: string, calls: readonly ToolCall[] | undefined): object {
  if (calls === undefined || content === '' || reasoning === '') return { thinking: reasoning }
  return { thinking: `${reasoning}\n\n${content}`, content: '' }
}

function jsonCall(call: ToolCall): object {
  const { name, arguments: json } = call.function
  return { ...call, function: { name, arguments: json === '' ? '{}' : json } }
}

function parsedCall(call: ToolCall): object {
  const { name, arguments: json } = call.function
  let parsed: unknown = json
  try {
    parsed = JSON.parse(json === '' ? '{}' : json)
  } catch {
    // A call that the model wrote wrongly stays as it is.
  }
  return { ...call, function: { name, arguments: parsed } }
}
