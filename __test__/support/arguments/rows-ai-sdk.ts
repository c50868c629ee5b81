import { isKvTideError } from 'kvtide'

import * as sdk from '../../../packages/ai-sdk/index.js'
import { DEMO, question } from '../../ai-sdk/demo.js'
import { all, but, count, flag, type Kind, never, optional, options, prompt, text, tokenIds } from './kinds.js'
import { type Entry, free, Members, param, type Row, rowsOf } from './row.js'
import { ANY } from './rows-contiguous.js'
import { sampling, signal } from './sampling.js'

/** Errors are of the AI SDK's classes, with kvtide's as the cause. */
const errorOf: Entry['errorOf'] = thrown => {
  const { cause } = thrown as { readonly cause?: unknown }
  return isKvTideError(cause) ? cause : isKvTideError(thrown) ? thrown : undefined
}

const provider = sdk.createKvtide({ threads: 1, cache: { memoryBytes: 2 ** 25 } })
const model = (): object => provider(DEMO)

/** Disposes of the models that calls have loaded. */
export const disposeModels = (): Promise<void> => provider.dispose()

const words: Kind = but(text, { '"3"': 'ok' })
/** Settings by name: their values are checked by the first call. */
const settings = param('settings', { legal: ANY }, () => ({ minP: 0.5 }))
const LEFT_OUT = [
  'topK',
  'topP',
  'presencePenalty',
  'frequencyPenalty',
  'seed',
  'stopSequences',
  'tools',
  'toolChoice',
  'responseFormat',
  'reasoning',
  'abortSignal',
  'providerOptions',
]
const asked = (): object => ({
  ...Object.fromEntries(LEFT_OUT.map(name => [name, undefined])),
  ...question('?'),
  maxOutputTokens: 1,
})

/** A stream that is not read holds blocks of the cache, so each is cancelled. */
class Cancelling extends sdk.KvtideLanguageModel {
  override async doStream(
    given: Parameters<sdk.KvtideLanguageModel['doStream']>[0],
  ): ReturnType<sdk.KvtideLanguageModel['doStream']> {
    const answer = await super.doStream(given)
    await answer.stream.cancel()
    return answer
  }
}

const user = (): object => ({ role: 'user', content: [{ type: 'text', text: '?' }] })
const { temperature, topK, topP, presencePenalty, frequencyPenalty, seed } = sampling as Required<typeof sampling>

const messages: Kind = {
  legal: {},
  entries: [
    options(user, {
      role: text,
      content: {
        legal: { 'an empty array': 'ok' },
        entries: [options(() => ({ type: 'text', text: '?' }), { text: words })],
      },
    }),
    options(() => ({ role: 'system', content: '?' }), { content: words }),
  ],
}

const own = options(
  () => ({}),
  {
    minP: optional({ legal: {} }),
    ignoreEndOfSequence: optional(flag),
    stopTokens: optional(tokenIds),
    salt: prompt['salt'] as Kind,
  },
  ANY,
)

const call = param(
  'options',
  options(asked, {
    prompt: messages,
    maxOutputTokens: optional(count),
    temperature: temperature as Kind,
    topK: topK as Kind,
    topP: topP as Kind,
    presencePenalty: presencePenalty as Kind,
    frequencyPenalty: frequencyPenalty as Kind,
    seed: seed as Kind,
    stopSequences: optional({ legal: { 'an empty array': 'ok' }, entries: [words] }),
    tools: optional({ legal: { 'an empty array': 'ok' }, entries: [{ legal: {} }] }),
    toolChoice: optional(options(() => ({}), { type: text })),
    responseFormat: optional(options(() => ({}), { type: text })),
    reasoning: optional(text),
    abortSignal: optional(signal),
    // Options of other providers are theirs.
    providerOptions: optional(
      options(
        () => ({}),
        { kvtide: optional(own) },
        { ...all('ok', value => typeof value === 'object' && value !== null), 'a revoked proxy': 'INVALID_ARGUMENT' },
      ),
    ),
  }),
  asked,
)

const always = { disposed: 'ok', foreign: 'INVALID_ARGUMENT' }

/** Rows of kvtide-ai-sdk. */
export const aiSdkRows: readonly Row[] = rowsOf(
  sdk,
  [
    free(
      'createKvtide',
      param('options', { legal: ANY }, () => ({ threads: 1 })),
    ),
    free(
      'kvtide',
      param('model', words, () => DEMO),
      settings,
    ),
    free(
      'new KvtideLanguageModel',
      param('token', never, () => undefined),
      param('modelId', never, () => undefined),
    ),
  ],
  errorOf,
)

/** Rows whose calls need a runtime. */
export const callRows: readonly Row[] = rowsOf(
  { KvtideLanguageModel: Cancelling },
  new Members('KvtideLanguageModel', model).special('doGenerate', always, call).special('doStream', always, call).rows,
  errorOf,
)
