// The options of a call, as kvtide names them, with a warning for each that has no effect.
import { type LanguageModelV4CallOptions, type SharedV4Warning, UnsupportedFunctionalityError } from '@ai-sdk/provider'
import type { ChatOptions, Tool, ToolChoice } from 'kvtide/text'

import { invalid, isList, isObject, typed } from './arguments.js'
import { type CallSettings, settingsOf } from './call-settings.js'
import { messagesOf } from './messages.js'

/** The options of a chat, and the warnings for the caller. */
export interface Translated {
  readonly chat: ChatOptions
  readonly warnings: SharedV4Warning[]
}

/** The efforts of templates that know three of them, as gpt-oss does. */
const EFFORTS = { minimal: 'low', low: 'low', medium: 'medium', high: 'high', xhigh: 'high', max: 'high' } as const

const EFFORT_NAMES: readonly unknown[] = ['provider-default', 'none', ...Object.keys(EFFORTS)]

/** Translates the options of a call. */
export function chatOptionsOf(model: CallSettings, options: LanguageModelV4CallOptions): Translated {
  checkOptions(options)
  const warnings: SharedV4Warning[] = []
  const { templateOptions, ...settings } = settingsOf(model, options)
  const tools = toolsOf(options, warnings)
  if (tools.tools !== undefined) warnOfGrammar(settings, tools.toolChoice, warnings)
  const variables = { ...reasoningOf(options.reasoning), ...templateOptions }
  const chat = {
    ...settings,
    messages: messagesOf(options.prompt),
    maxTokens: options.maxOutputTokens,
    temperature: options.temperature,
    topP: options.topP,
    // The AI SDK's providers take 0 as "all", kvtide takes no option.
    topK: options.topK === 0 ? undefined : options.topK,
    presencePenalty: options.presencePenalty,
    frequencyPenalty: options.frequencyPenalty,
    seed: options.seed,
    stop: options.stopSequences?.length === 0 ? undefined : options.stopSequences,
    signal: options.abortSignal,
    templateOptions: Object.keys(variables).length === 0 ? undefined : variables,
    ...formatOf(options.responseFormat, settings),
    ...tools,
  }
  return { chat: defined(chat) as ChatOptions, warnings }
}

/** Checks the options that are translated here. The model checks the others. */
function checkOptions(options: LanguageModelV4CallOptions): void {
  const { tools, toolChoice, responseFormat, reasoning, abortSignal, stopSequences } = options
  if (tools !== undefined && !isList(tools)) throw invalid('tools', tools, 'an array of tools')
  for (const [place, tool] of (tools ?? []).entries()) typed(`tools[${place}]`, tool ?? null, ['function', 'provider'])
  if (stopSequences !== undefined && !isList(stopSequences))
    throw invalid('stopSequences', stopSequences, 'an array of strings')
  typed('toolChoice', toolChoice, ['auto', 'none', 'required', 'tool'])
  typed('responseFormat', responseFormat, ['text', 'json'])
  if (reasoning !== undefined && !EFFORT_NAMES.includes(reasoning))
    throw invalid('reasoning', reasoning, EFFORT_NAMES.join(', '))
  if (abortSignal !== undefined && !(isObject(abortSignal) && abortSignal instanceof AbortSignal))
    throw invalid('abortSignal', abortSignal, 'an AbortSignal')
}

/** Returns the options without those that are `undefined`. */
function defined(options: object): object {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
}

function toolsOf(
  { tools, toolChoice }: LanguageModelV4CallOptions,
  warnings: SharedV4Warning[],
): { tools?: Tool[]; toolChoice?: ToolChoice } {
  const own = (tools ?? []).flatMap((tool): Tool[] => {
    if (tool.type === 'function')
      return [
        {
          type: 'function',
          function: {
            name: tool.name,
            ...(tool.description === undefined ? {} : { description: tool.description }),
            parameters: tool.inputSchema,
            ...(tool.strict === undefined ? {} : { strict: tool.strict }),
          },
        },
      ]
    warnings.push({
      type: 'unsupported',
      feature: `the tool ${tool.id}`,
      details: 'it runs on the servers of another provider; a model of kvtide calls functions alone',
    })
    return []
  })
  if (own.length === 0) {
    if (toolChoice?.type === 'required' || toolChoice?.type === 'tool')
      throw new UnsupportedFunctionalityError({
        functionality: 'toolChoice',
        message: `toolChoice asks for a call, but there is no function to call`,
      })
    return {}
  }
  if (toolChoice === undefined) return { tools: own }
  return { tools: own, toolChoice: toolChoice.type === 'tool' ? { name: toolChoice.toolName } : toolChoice.type }
}

/** Adds a warning for a grammar that allows no calls: any that is not one of JSON. */
function warnOfGrammar({ grammar }: CallSettings, choice: ToolChoice | undefined, warnings: SharedV4Warning[]): void {
  if (grammar === undefined || 'json' in grammar || (choice ?? 'auto') !== 'auto') return
  warnings.push({
    type: 'unsupported',
    feature: 'tools and grammar',
    details: 'the answer matches the grammar of the settings, so no tool is called; a grammar of JSON allows calls',
  })
}

/** A JSON schema becomes a grammar: the model can't write anything else. */
function formatOf(
  format: LanguageModelV4CallOptions['responseFormat'],
  { grammar }: CallSettings,
): Pick<ChatOptions, 'schema' | 'grammar'> {
  if (format?.type !== 'json') return {}
  if (grammar !== undefined)
    throw new UnsupportedFunctionalityError({
      functionality: 'responseFormat and grammar',
      message: 'responseFormat asks for JSON, and the settings have a grammar: give one of them',
    })
  return format.schema === undefined ? { grammar: { json: 'object' } } : { schema: format.schema }
}

/** Returns variables of chat templates: `enable_thinking` of Qwen3 and its like, `reasoning_effort` of gpt-oss. Others ignore them. */
function reasoningOf(reasoning: LanguageModelV4CallOptions['reasoning']): Record<string, unknown> {
  if (reasoning === undefined || reasoning === 'provider-default') return {}
  if (reasoning === 'none') return { enable_thinking: false }
  return { enable_thinking: true, reasoning_effort: EFFORTS[reasoning] }
}
