// Grammars that force calls, or leave the choice between calls and JSON: the text of a family's calls, with the JSON schemas of the tools in place of their
// arguments.
//
// Names and punctuation are fixed, so that the model decides on nothing but the tool and its arguments. Objects have the separators that templates write, and
// no other whitespace. Reasoning is allowed in front if the model reasons.
import type { Grammar } from '../../sampling/grammar.js'
import type { Tool, ToolFamily } from '../types.js'
import type { ReasoningMarks } from './answer-parser.js'
import { isFields } from '../files.js'

/** @internal A grammar of JSON. */
export type JsonGrammar = Extract<Grammar, { readonly json: unknown }>

/** @internal How calls are forced. */
export interface CallGrammar {
  readonly family: ToolFamily
  readonly tools: readonly Tool[]
  /** True for exactly one call. */
  readonly isSingle: boolean
  /** The JSON that the answer may be instead of calls; `undefined` if calls are forced. */
  readonly answer: JsonGrammar | undefined
  readonly reasoning: ReasoningMarks | undefined
  /** True if the prompt has opened the reasoning. */
  readonly isReasoning: boolean
  /** The id of a special token by its text; `undefined` for texts that are no special token. */
  readonly specialOf: (text: string) => number | undefined
}

/** @internal The grammar of an answer that calls a tool, or is JSON instead. */
export function callGrammar(given: CallGrammar): Grammar {
  const { tools, family, isSingle, answer } = given
  const lines = tools.map((tool, which) => `args${which}: %json ${JSON.stringify(schemaOf(tool))}`)
  const calls = tools.map((tool, which) => callOf(given, tool, which, lines))
  lines.push(`call: ${calls.map(call => `(${call})`).join(' | ')}`)
  const [before, between, behind] = AROUND[family].map(text => (text === '' ? '' : parts(given, text)))
  const more = isSingle || between === undefined ? '' : ` (${between} call)*`
  const own = `${before ?? ''} call${more} ${behind ?? ''}`
  if (answer === undefined) lines.push(`calls: ${own}`)
  else {
    const front = family === 'gpt-oss' ? parts(given, '<|channel|>final<|message|>') : ''
    lines.push(`calls: ${own} | ${front} answer`, jsonRule('answer', answer))
  }
  return { lark: [...startOf(given), ...lines].join('\n') }
}

/** The texts in front of calls, between them, and behind; a family whose calls cannot follow each other has no text between. */
const AROUND: Readonly<Record<ToolFamily, readonly string[]>> = {
  hermes: ['', '\n', ''],
  'qwen3-coder': ['', '\n', ''],
  llama3: ['', '; ', ''],
  mistral: ['[TOOL_CALLS] [', ', ', ']'],
  granite: ['<|tool_call|>[', ', ', ']'],
  deepseek: ['<｜tool▁calls▁begin｜>', '\n', '<｜tool▁calls▁end｜>'],
  'gpt-oss': [''],
}

function callOf(given: CallGrammar, tool: Tool, which: number, lines: string[]): string {
  const { name } = tool.function
  const json = JSON.stringify(name)
  const text = (before: string, behind: string): string =>
    `${parts(given, before)} args${which} ${parts(given, behind)}`
  switch (given.family) {
    case 'hermes':
      return text(`<tool_call>\n{"name": ${json}, "arguments": `, '}\n</tool_call>')
    case 'llama3':
      // Beside an answer in JSON, no literal may be longer than a token of JSON: of two that begin alike, the lexer takes the longer one.
      return `${literals('{', '"name"', ':', ' ', json, ',', ' ', '"parameters"', ':', ' ')} args${which} "}"`
    case 'mistral':
    case 'granite':
      return text(`{"name": ${json}, "arguments": `, '}')
    case 'deepseek':
      return text(`<｜tool▁call▁begin｜>function<｜tool▁sep｜>${name}\n\`\`\`json\n`, '\n```<｜tool▁call▁end｜>')
    case 'gpt-oss':
      return text(`<|channel|>commentary to=functions.${name} <|constrain|>json<|message|>`, '')
    case 'qwen3-coder':
      return tagged(given, tool, which, lines)
  }
}

function literals(...texts: readonly string[]): string {
  return texts.map(text => JSON.stringify(text)).join(' ')
}

/** Qwen3-Coder's call: parameters in the order of the schema, those that are not required optional. */
function tagged(given: CallGrammar, tool: Tool, which: number, lines: string[]): string {
  const schema = schemaOf(tool)
  const properties = isFields(schema['properties']) ? schema['properties'] : {}
  const required = Array.isArray(schema['required']) ? schema['required'] : []
  const parameters = Object.entries(properties).map(([name, own], place) => {
    const rule = `value${which}_${place}`
    const isText = isFields(own) && own['type'] === 'string' && own['enum'] === undefined
    // The text of a parameter ends at its closing tag.
    lines.push(
      isText
        ? `${rule}[lazy]: /(.|\\n)*?\\n<\\/parameter>\\n/`
        : `${rule}: ${rule}_json "\\n</parameter>\\n"\n${rule}_json: %json ${JSON.stringify(own)}`,
    )
    const parameter = `${parts(given, `<parameter=${name}>\n`)} ${rule}`
    return required.includes(name) ? parameter : `(${parameter})?`
  })
  return [
    parts(given, `<tool_call>\n<function=${tool.function.name}>\n`),
    ...parameters,
    parts(given, '</function>\n</tool_call>'),
  ].join(' ')
}

/** The schema of a tool's arguments, always an object, with the separators that templates write. */
function schemaOf(tool: Tool): Record<string, unknown> {
  const schema = (tool.function.parameters ?? {}) as Record<string, unknown>
  return {
    ...schema,
    type: 'object',
    'x-guidance': { whitespace_flexible: false, item_separator: ', ', key_separator: ': ' },
  }
}

/** The rules for what may stand in front of calls. */
function startOf({
  family,
  reasoning,
  isReasoning,
  specialOf,
}: Pick<CallGrammar, 'family' | 'reasoning' | 'isReasoning' | 'specialOf'>): string[] {
  if (family === 'gpt-oss') {
    const token = (text: string): string => tokenOf(specialOf, text)
    return [
      'start: analysis? calls',
      `analysis: ${token('<|channel|>')} "analysis" ${token('<|message|>')} thought ${token('<|end|>')} ${token('<|start|>')} "assistant"`,
      'thought: /(.|\\n)*/',
    ]
  }
  if (reasoning === undefined) return ['start: calls']
  const [open, close] = [tokenOf(specialOf, reasoning.open), specialOf(reasoning.close)]
  const thought =
    close === undefined
      ? `thought[lazy]: /(.|\\n)*?${escaped(reasoning.close)}\\s*/`
      : `thought: inner <[${close}]> /\\s*/\ninner: /(.|\\n)*/`
  return [isReasoning ? 'start: thought calls' : `start: (${open} thought)? calls`, thought]
}

/** A text as a sequence of literals and special tokens. */
function parts({ specialOf }: CallGrammar, text: string): string {
  if (text === '') return ''
  // Special tokens of all families are in angle or square brackets.
  const pieces = text.split(/(<[|｜][^<>]*[|｜]>|<\/?tool_call>|\[TOOL_CALLS\])/).filter(piece => piece !== '')
  return pieces.map(piece => tokenOf(specialOf, piece)).join(' ')
}

function tokenOf(specialOf: CallGrammar['specialOf'], text: string): string {
  const id = specialOf(text)
  return id === undefined ? JSON.stringify(text) : `<[${id}]>`
}

function escaped(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\/]/g, String.raw`\$&`)
}

/** @internal The grammar of an answer that may start with reasoning. Only the end of reasoning that the prompt has opened is put in front, and only of JSON. */
export function reasonedGrammar(
  grammar: Grammar,
  given: Pick<CallGrammar, 'reasoning' | 'isReasoning' | 'specialOf'>,
): Grammar {
  if (!given.isReasoning || !('json' in grammar)) return grammar
  const lines = startOf({ ...given, family: 'hermes' })
  return { lark: [...lines, jsonRule('calls', grammar)].join('\n') }
}

function jsonRule(name: string, { json }: JsonGrammar): string {
  return `${name}: %json ${JSON.stringify(json === 'object' ? { type: 'object' } : json)}`
}
