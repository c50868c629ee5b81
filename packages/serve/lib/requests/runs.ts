// From a request to generations: the options that the model gets for each answer.
import type { TextModel, TextOptions } from 'kvtide/text'

import { requestSalt, type Tenant } from '../access/keys.js'
import { ChatForm } from '../answers/chat-form.js'
import { CompletionForm } from '../answers/completion-form.js'
import type { ResponseHead } from '../answers/form.js'
import type { Run } from '../answers/request-run.js'
import type { PublicPrompt } from '../public-prompt.js'
import { Refusal } from '../refusal.js'
import type { ChatRequest } from './chat.js'
import type { CompletionRequest, Prompt } from './completion.js'
import { defined } from './fields.js'
import { checkContext, seedOf, type SharedRequest } from './sampling.js'

/** The values that all requests to a server have in common. */
export interface Served {
  readonly model: TextModel
  readonly maxTokens: number | undefined
  readonly draft: TextOptions['draft']
  readonly publicPrompt: PublicPrompt | undefined
}

/** The options that answers of both endpoints have. */
function optionsOf(served: Served, request: SharedRequest, tenant: Tenant, logprobs: number | undefined) {
  const { options, seed, cacheSalt } = request
  const most = Math.min(options.maxTokens ?? Infinity, served.maxTokens ?? Infinity)
  const shared = defined({
    ...options,
    maxTokens: Number.isFinite(most) ? most : undefined,
    salt: requestSalt(tenant, cacheSalt),
    logprobs,
    draft: served.draft,
  })
  return (answer: number, signal: AbortSignal) => ({ ...shared, ...defined({ seed: seedOf(seed, answer) }), signal })
}

/** The options of a chat's prompt, those of its text, and the position at which the tenant's salt begins. */
function promptOf({ publicPrompt }: Served, request: ChatRequest, tenant: Tenant) {
  const { messages, tools, toolChoice, templateOptions, cacheSalt } = request
  const chat = { messages, ...defined({ tools, toolChoice, templateOptions }) }
  // A prompt has no tools if no call is allowed, and renders the same for all other choices.
  const rendered = { messages, ...defined({ tools: toolChoice === 'none' ? undefined : tools, templateOptions }) }
  const isShared = tenant.salt !== undefined && cacheSalt === undefined
  const saltFrom = isShared ? (publicPrompt?.tokens(rendered) ?? 0) : 0
  return { chat, rendered, saltFrom }
}

/** Returns the keys of the blocks of a chat, without its last token, which is always computed. */
export async function chatKeys(
  served: Served,
  request: ChatRequest,
  tenant: Tenant,
  signal: AbortSignal,
): Promise<string[]> {
  const { rendered, saltFrom } = promptOf(served, request, tenant)
  const { model } = served
  const tokens = await model.tokenizer.encodeAsync(model.render(rendered), { addSpecialTokens: false, signal })
  checkContext(tokens.length, model.contextLength, 'messages')
  return keysOf(served, tokens, requestSalt(tenant, request.cacheSalt), saltFrom)
}

/** Returns the keys of the blocks of the first prompt. */
export async function completionKeys(
  served: Served,
  { prompts, cacheSalt }: CompletionRequest,
  tenant: Tenant,
  signal: AbortSignal,
): Promise<string[]> {
  const { tokenizer, contextLength } = served.model
  const [prompt] = prompts as readonly [Prompt]
  const tokens = typeof prompt === 'string' ? await tokenizer.encodeAsync(prompt, { signal }) : Uint32Array.from(prompt)
  checkContext(tokens.length, contextLength, 'prompt')
  return keysOf(served, tokens, requestSalt(tenant, cacheSalt), 0)
}

function keysOf({ model }: Served, tokens: Uint32Array, salt: string | undefined, saltFrom: number): string[] {
  const options = { ...defined({ salt }), ...(saltFrom === 0 ? {} : { saltFrom }) }
  return [...model.model.cache.keys(tokens.subarray(0, -1), options)]
}

/** Answers to a chat. */
export function chatRun(served: Served, request: ChatRequest, tenant: Tenant, head: ResponseHead): Run {
  const { model } = served
  if (!model.hasTemplate)
    throw new Refusal(400, 'the model has no chat template: use /v1/completions', 'messages', 'unsupported_parameter')
  const { isParallel, logprobs, count, includeUsage } = request
  const options = optionsOf(served, request, tenant, logprobs)
  let prompt: ReturnType<typeof promptOf> | undefined
  return {
    tenant: tenant.salt ?? '',
    form: new ChatForm(head, logprobs !== undefined),
    prompts: 1,
    count,
    isSingleCall: !isParallel,
    includeUsage,
    start: (_, answer, signal) => {
      // Finding the public prompt renders the chat, so it is done once, and only for a request that has its place.
      const { chat, saltFrom } = (prompt ??= promptOf(served, request, tenant))
      return model.chat({ ...chat, ...(saltFrom === 0 ? {} : { saltFrom }), ...options(answer, signal) })
    },
  }
}

/** Returns the text in front of each answer: that of its prompt. A list of ids is decoded once, when the first answer asks for it. */
function echoOf({ model }: Served, { prompts, count, hasEcho }: CompletionRequest): (index: number) => string {
  const texts: string[] = []
  return index => {
    if (!hasEcho) return ''
    const place = Math.floor(index / count)
    const prompt = prompts[place] as Prompt
    return (texts[place] ??= typeof prompt === 'string' ? prompt : model.tokenizer.decode(prompt))
  }
}

/** Continuations of prompts. */
export function completionRun(served: Served, request: CompletionRequest, tenant: Tenant, head: ResponseHead): Run {
  const { model } = served
  const { prompts, count, logprobs, includeUsage } = request
  const options = optionsOf(served, request, tenant, logprobs)
  return {
    tenant: tenant.salt ?? '',
    form: new CompletionForm(head, logprobs !== undefined, echoOf(served, request)),
    prompts: prompts.length,
    count,
    isSingleCall: false,
    includeUsage,
    start: (prompt, answer, signal) =>
      model.complete({ prompt: prompts[prompt] as Prompt, ...options(answer, signal) }),
  }
}
