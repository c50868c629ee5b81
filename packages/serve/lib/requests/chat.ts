// The parameters of `POST /v1/chat/completions`, read field by field, or refused with the field's name.
import type { ChatMessage } from 'kvtide/text'

import { wrong } from '../refusal.js'
import { type Fields, flag, given, group, number } from './fields.js'
import { refuseOthers } from './known.js'
import { readMessages, readTools, type ToolUse } from './messages.js'
import { checkModel, type ModelFacts, readShared, type SharedRequest } from './sampling.js'

/** A request for answers to a chat. */
export interface ChatRequest extends SharedRequest, ToolUse {
  readonly messages: readonly ChatMessage[]
  /** The number of alternatives to return with each token; undefined if the client wants no log-probabilities. */
  readonly logprobs: number | undefined
  /** Variables of the chat template. */
  readonly templateOptions: Readonly<Record<string, unknown>> | undefined
}

const EFFORTS: readonly unknown[] = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh']

/** Variables that the server sets itself. */
const OWN: readonly string[] = ['messages', 'tools', 'add_generation_prompt', 'bos_token', 'eos_token', 'chat_template']

/** Reads a request body. */
export function readChat(fields: Fields, facts: ModelFacts): ChatRequest {
  checkModel(fields, facts)
  refuseOthers(fields, 'chat')
  const hasLogprobs = flag(fields, 'logprobs')
  const top = number(fields, 'top_logprobs', { least: 0, most: 20, whole: true })
  if (top !== undefined && !hasLogprobs) throw wrong('top_logprobs', top, 'omitted unless logprobs is true')
  return {
    messages: readMessages(fields),
    ...readTools(fields),
    ...readShared(fields, facts, ['max_completion_tokens', 'max_tokens']),
    logprobs: hasLogprobs ? (top ?? 0) : undefined,
    templateOptions: readTemplateOptions(fields),
  }
}

/** Templates that know reasoning read one of two variables: how much, or whether at all. */
function readTemplateOptions(fields: Fields): Readonly<Record<string, unknown>> | undefined {
  const effort = given(fields, 'reasoning_effort')
  if (effort !== undefined && !EFFORTS.includes(effort)) throw wrong('reasoning_effort', effort, EFFORTS.join(', '))
  const own = group(fields, 'chat_template_kwargs') ?? {}
  for (const name of OWN) {
    if (Object.hasOwn(own, name)) throw wrong(`chat_template_kwargs.${name}`, own[name], 'omitted: the server sets it')
  }
  const reasoning =
    effort === undefined ? {} : { reasoning_effort: effort, enable_thinking: effort !== 'none' && effort !== 'minimal' }
  const options = { ...reasoning, ...own }
  return Object.keys(options).length === 0 ? undefined : options
}
