// Options of chats and completions, and their checks. All of them are read once, before anything is computed.
import { arrayKind, count, flag, isArray, known, list, type Names, optional } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { isAbortSignal } from '../border/stop-signal.js'
import { checkDraft, OnnxModel } from '../onnx/model.js'
import { readPositions } from '../onnx/token-log.js'
import { readSamplingOptions, SAMPLING_OPTIONS, type SamplingOptions } from '../sampling/options.js'
import { promptOf, wellFormed } from '../sequences/prompt.js'
import { readTokens } from '../sequences/tokens.js'
import { type Fields, isFields } from './files.js'
import { copied, type ReadMessage, readMessages, readToolChoice, readTools } from './messages.js'
import { type Grammar, readGrammar as checkGrammar } from '../sampling/grammar.js'
import type { ChatOptions, CompleteOptions, TextOptions, Tool, ToolChoice } from './types.js'

/** @internal Options of an answer after their check. */
export interface AnswerOptions {
  readonly sampling: Omit<SamplingOptions, 'allowed'>
  readonly maxTokens: number | undefined
  readonly stop: readonly string[]
  readonly stopTokens: readonly number[]
  readonly ignoreEndOfSequence: boolean
  readonly grammar: Grammar | undefined
  readonly signal: AbortSignal | undefined
  readonly draft: unknown
  readonly salt: string | Uint8Array | undefined
  readonly saltFrom: number | undefined
  readonly checkpoints: readonly number[]
}

/** @internal Options of a chat after their check. */
export interface ReadChat extends AnswerOptions {
  readonly messages: readonly ReadMessage[]
  readonly tools: readonly Tool[] | undefined
  readonly toolChoice: ToolChoice
  readonly variables: Readonly<Record<string, unknown>>
}

/** @internal Options of a completion after their check. */
export interface ReadCompletion extends AnswerOptions {
  readonly prompt: string | Uint32Array
}

type SamplingNames = Omit<typeof SAMPLING_OPTIONS, 'allowed'>
const { allowed: _allowed, ...SAMPLING } = SAMPLING_OPTIONS
const TEXT: Names<TextOptions> = {
  ...(SAMPLING satisfies SamplingNames),
  maxTokens: 0,
  stop: 0,
  stopTokens: 0,
  ignoreEndOfSequence: 0,
  schema: 0,
  grammar: 0,
  signal: 0,
  draft: 0,
  salt: 0,
  saltFrom: 0,
  checkpoints: 0,
}
const CHAT: Names<ChatOptions> = { ...TEXT, messages: 0, tools: 0, toolChoice: 0, templateOptions: 0 }
const COMPLETE: Names<CompleteOptions> = { ...TEXT, prompt: 0 }
const RENDER: Names<RenderOptions> = { messages: 0, tools: 0, templateOptions: 0 }

/** Options of {@link TextModel.render}. */
export type RenderOptions = Pick<ChatOptions, 'messages' | 'tools' | 'templateOptions'>

/** The most stop texts, and the most characters of one. */
const STOPS_MAX = 64
const STOP_LENGTH_MAX = 1024
/** Variables that a template gets from the chat itself. */
const OWN = ['messages', 'tools']

/** @internal The checks of the option `draft`. */
export interface DraftChecks {
  /** The model whose tokens are drafted. */
  readonly target: OnnxModel
  /** Returns the OnnxModel of a TextModel; `undefined` if the value is not a TextModel. */
  readonly modelOf: (value: unknown) => OnnxModel | undefined
}

/** @internal */
export function readChat(options: unknown, drafts: DraftChecks): ReadChat {
  const given = known<ChatOptions>('options', options, CHAT)
  const { messages, tools, toolChoice, templateOptions } = given
  const read = readMessages(messages)
  const all = readTools(tools)
  const choice = readToolChoice(toolChoice, all)
  const answer = readAnswer(given, drafts)
  if (answer.grammar !== undefined && (typeof choice === 'object' || choice === 'required'))
    throw invalid('toolChoice', toolChoice, "'auto' or 'none' together with a schema or a grammar")
  return {
    ...answer,
    messages: read,
    tools: choice === 'none' ? undefined : all,
    toolChoice: choice,
    variables: readVariables(templateOptions),
  }
}

/** @internal */
export function readRender(options: unknown): Pick<ReadChat, 'messages' | 'tools' | 'variables'> {
  const { messages, tools, templateOptions } = known<RenderOptions>('options', options, RENDER)
  return { messages: readMessages(messages), tools: readTools(tools), variables: readVariables(templateOptions) }
}

/** @internal */
export function readCompletion(options: unknown, drafts: DraftChecks): ReadCompletion {
  const given = known<CompleteOptions>('options', options, COMPLETE)
  const { prompt } = given
  const isIds = typeof prompt !== 'string' && (isArray(prompt) || arrayKind(prompt) !== undefined)
  if (typeof prompt !== 'string' && !isIds) throw invalid('prompt', prompt, 'a string, or an array of ids')
  return { ...readAnswer(given, drafts), prompt: isIds ? readTokens('prompt', prompt).slice() : (prompt as string) }
}

function readVariables(templateOptions: unknown): Readonly<Record<string, unknown>> {
  if (templateOptions === undefined) return {}
  if (!isFields(templateOptions)) throw invalid('templateOptions', templateOptions, 'an object of variables')
  for (const name of OWN)
    if (templateOptions[name] !== undefined)
      throw invalid(`templateOptions.${name}`, templateOptions[name], `the option ${name}`)
  return copied('templateOptions', templateOptions) as Readonly<Record<string, unknown>>
}

function readAnswer(given: { readonly [Name in keyof TextOptions]?: unknown }, drafts: DraftChecks): AnswerOptions {
  const { maxTokens, stop, stopTokens, ignoreEndOfSequence, schema, grammar, signal, draft, salt, saltFrom } = given
  const sampling = Object.fromEntries(
    Object.keys(SAMPLING)
      .map(name => [name, given[name as keyof TextOptions]] as const)
      .filter(([, value]) => value !== undefined),
  )
  readSamplingOptions('options', sampling)
  if (signal !== undefined && !isAbortSignal(signal)) throw invalid('signal', signal, 'an AbortSignal')
  promptOf({ salt, saltFrom })
  return {
    sampling,
    maxTokens: optional((argument, value) => count(argument, value, 1), 'maxTokens', maxTokens),
    stop: readStop(stop),
    stopTokens: [...(optional(readTokens, 'stopTokens', stopTokens) ?? [])],
    ignoreEndOfSequence: optional(flag, 'ignoreEndOfSequence', ignoreEndOfSequence) ?? false,
    grammar: readGrammar(schema, grammar),
    signal: signal as AbortSignal | undefined,
    draft: optional((_, value) => readDraft(value, drafts), 'draft', draft),
    salt: (salt instanceof Uint8Array ? salt.slice() : salt) as string | Uint8Array | undefined,
    saltFrom: saltFrom as number | undefined,
    checkpoints: readPositions('checkpoints', given.checkpoints),
  }
}

function readStop(stop: unknown): string[] {
  if (stop === undefined) return []
  const given = typeof stop === 'string' ? [stop] : stop
  if (!isArray(given)) throw invalid('stop', stop, 'a string, or an array of strings')
  if (given.length > STOPS_MAX) throw invalid('stop.length', given.length, `at most ${STOPS_MAX} stop texts`)
  return list('stop', given, (argument, value) => {
    const text = wellFormed(argument, value)
    if (text !== '' && text.length <= STOP_LENGTH_MAX) return text
    throw invalid(`${argument}.length`, text.length, `1 to ${STOP_LENGTH_MAX} characters`)
  })
}

function readGrammar(schema: unknown, grammar: unknown): Grammar | undefined {
  if (schema === undefined && grammar === undefined) return undefined
  if (schema !== undefined && grammar !== undefined)
    throw invalid('grammar', grammar, 'no grammar together with schema')
  if (schema !== undefined && !isFields(schema)) throw invalid('schema', schema, 'a JSON schema, an object')
  // Checked, and copied: the caller's object may change before it is used.
  const read = checkGrammar('grammar', schema === undefined ? grammar : { json: schema })
  return (read.kind === 'json' ? { json: JSON.parse(read.text) as object } : { [read.kind]: read.text }) as Grammar
}

/** The option `draft`, checked and copied, with OnnxModels in place of TextModels. */
function readDraft(draft: unknown, { target, modelOf }: DraftChecks): unknown {
  const read = modelOf(draft) ?? (isFields(draft) && !(draft instanceof OnnxModel) ? inner(draft, modelOf) : draft)
  checkDraft(target, read)
  return read
}

function inner(draft: Fields, modelOf: DraftChecks['modelOf']): Fields {
  const copy = { ...draft }
  return copy['model'] === undefined ? copy : { ...copy, model: modelOf(copy['model']) ?? copy['model'] }
}
