// The table of fields that requests may have and that the server does not honour: each is ignored because it does not change an answer, or refused because it
// would. `docs/serve.md` shows the same table. Fields that are in no table are ignored, because clients send fields of other servers.
import { Refusal } from '../refusal.js'
import { type Fields, given } from './fields.js'

/** A field that is not honoured. */
export interface OtherField {
  readonly name: string
  /** The endpoints that know it. */
  readonly of: 'chat' | 'completions' | 'both'
  /** `ignored`, or `refused` unless its value is one that asks for nothing. */
  readonly use: 'ignored' | 'refused'
  readonly why: string
  /** True for values of a refused field that ask for nothing. Null, and a missing field, always do. */
  readonly asksNothing?: (value: unknown) => boolean
}

const isEmpty = (value: unknown): boolean => Array.isArray(value) && value.length === 0
const isFalse = (value: unknown): boolean => value === false
const isTrue = (value: unknown): boolean => value === true
const isZero = (value: unknown): boolean => value === 0

const ignored = (of: OtherField['of'], why: string, ...names: readonly string[]): OtherField[] =>
  names.map(name => ({ name, of, use: 'ignored', why }))

const refused = (
  of: OtherField['of'],
  name: string,
  why: string,
  asksNothing: (value: unknown) => boolean = () => false,
): OtherField => ({ name, of, use: 'refused', why, asksNothing })

/** The fields that the server does not honour. */
export const OTHER_FIELDS: readonly OtherField[] = [
  ...ignored('chat', 'nothing is stored', 'store', 'metadata'),
  ...ignored('both', 'identifies an end user; tenants are separated by API keys', 'user', 'safety_identifier'),
  ...ignored(
    'chat',
    'prompts are cached by their content',
    'prompt_cache_key',
    'prompt_cache_retention',
    'prompt_cache_options',
  ),
  ...ignored('chat', 'there is one tier of service', 'service_tier'),
  ...ignored('chat', 'only predicts the answer, for speed', 'prediction'),
  ...ignored('both', 'of vLLM: requests are served in a fair order', 'priority'),
  ...ignored('both', 'of vLLM: the server chooses ids', 'request_id'),
  refused('chat', 'audio', 'the model writes text only'),
  refused('chat', 'modalities', 'the model writes text only', value => JSON.stringify(value) === '["text"]'),
  refused('chat', 'moderation', 'there is no moderation model'),
  refused('chat', 'verbosity', 'models have no such setting', value => value === 'medium'),
  refused('chat', 'web_search_options', 'there is no web search'),
  refused('chat', 'functions', 'deprecated: use tools', isEmpty),
  refused('chat', 'function_call', 'deprecated: use tool_choice', value => value === 'none' || value === 'auto'),
  refused('completions', 'suffix', 'the text behind a gap is not supported', value => value === ''),
  refused('completions', 'best_of', 'answers are not ranked: use n', value => value === 1),
  refused('both', 'use_beam_search', 'of vLLM: tokens are sampled', isFalse),
  refused('both', 'length_penalty', 'of vLLM: tokens are sampled', value => value === 1),
  refused('both', 'min_tokens', 'of vLLM: an answer may end at once', isZero),
  refused('both', 'include_stop_str_in_output', 'of vLLM: stop texts are removed', isFalse),
  refused('both', 'skip_special_tokens', 'of vLLM: special tokens are removed', isTrue),
  refused('both', 'allowed_token_ids', 'of vLLM: use response_format', isEmpty),
  refused('both', 'bad_words', 'of vLLM: use logit_bias', isEmpty),
  refused('both', 'prompt_logprobs', 'of vLLM: prompts have no log-probabilities'),
  refused('both', 'truncate_prompt_tokens', 'of vLLM: prompts are not cut'),
  refused('both', 'guided_grammar', 'of vLLM: use structured_outputs.grammar with a Lark grammar'),
  refused('chat', 'chat_template', 'a template is code: only the operator sets it'),
  refused('chat', 'add_generation_prompt', 'of vLLM: the model always answers', isTrue),
  refused('chat', 'continue_final_message', 'of vLLM: the model starts a new message', isFalse),
  refused('chat', 'documents', 'of vLLM: put them into a message', isEmpty),
  refused('chat', 'echo', 'of vLLM: an answer has no prompt', isFalse),
]

/** Refuses a request with a field that would change the answer and that the server does not honour. */
export function refuseOthers(fields: Fields, endpoint: 'chat' | 'completions'): void {
  for (const { name, of, use, why, asksNothing } of OTHER_FIELDS) {
    if (use === 'ignored' || (of !== 'both' && of !== endpoint)) continue
    const value = given(fields, name)
    if (value === undefined || asksNothing?.(value) === true) continue
    throw new Refusal(400, `${name} is not supported: ${why}`, name, 'unsupported_parameter')
  }
}
