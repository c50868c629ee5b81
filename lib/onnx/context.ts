// The model's context: the maximum number of tokens that it can see at once. Longer sequences are refused before any of their tokens is computed.
//
//     config.json         max_position_embeddings and its other names, times a factor of rope scaling that is not included in it
//     genai_config.json   model.context_length
//     the graph           rows of its tables of cosines
//
// The smallest of these is used.
import { KvTideError } from '../errors/errors.js'

/** The names that families use for the longest sequence. */
const NAMES = [
  'max_position_embeddings',
  'max_target_positions',
  'n_positions',
  'n_ctx',
  'max_seq_len',
  'max_seq_length',
  'max_sequence_length',
  'seq_length',
  'seq_len',
  'model_max_length',
] as const

/** The rope scaling in a `config.json`. */
interface RopeScaling {
  readonly rope_type?: unknown
  readonly type?: unknown
  readonly factor?: unknown
  readonly original_max_position_embeddings?: unknown
}

/** @internal The fields of a `config.json` that determine the length of the context. */
export type ContextFields = { readonly [name in (typeof NAMES)[number]]?: unknown } & {
  readonly rope_scaling?: unknown
  readonly rope_parameters?: unknown
}

/**
 * @internal The context that a `config.json` declares. As in transformers, `max_position_embeddings` already includes rope scaling, except for `yarn` and
 * `dynamic`, whose factor is applied on top of it.
 */
export function contextOf(fields: ContextFields): number | undefined {
  const declared = smallest(NAMES.map(name => sizeIn(fields[name])))
  if (declared === undefined) return undefined
  return Math.max(declared, ...scalings(fields).map(scaling => scaledLength(declared, scaling)))
}

function scaledLength(
  declared: number,
  { rope_type, type, factor, original_max_position_embeddings }: RopeScaling,
): number {
  const way = rope_type ?? type
  if (typeof factor !== 'number' || !(factor > 1) || (way !== 'yarn' && way !== 'dynamic')) return declared
  return Math.floor((sizeIn(original_max_position_embeddings) ?? declared) * factor)
}

/** All scalings of a config: one, or one for each kind of layers. */
function scalings({ rope_scaling, rope_parameters }: ContextFields): RopeScaling[] {
  return [rope_scaling, rope_parameters]
    .filter(isFields)
    .flatMap(scaling => [scaling, ...Object.values(scaling).filter(isFields)])
}

function isFields(value: unknown): value is RopeScaling {
  return typeof value === 'object' && value !== null
}

/** @internal A size from a config, if it is a whole number of at least 1. */
export function sizeIn(value: unknown): number | undefined {
  return Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : undefined
}

/** @internal The smallest of the known lengths. */
export function smallest(lengths: readonly (number | undefined)[]): number | undefined {
  const known = lengths.filter(length => length !== undefined)
  return known.length === 0 ? undefined : Math.min(...known)
}

/** @internal Refuses a sequence of `tokens` tokens if the context is shorter. */
export function checkContext(tokens: number, contextLength: number | undefined): void {
  if (contextLength === undefined || tokens <= contextLength) return
  throw new KvTideError('CONTEXT_OVERFLOW', `${tokens} tokens exceed the model's context of ${contextLength} tokens`, {
    tokens,
    contextLength,
  })
}
