// The errors of this package: their codes, the fields of `details` for each code, and the class `KvTideError`. Codes never change once they are published.
// Every text in an error is one line without secrets: see shown.
import { GRAPH_ADVICE, type GraphRefusal, graphRefusalOf } from './graph-advice.js'
import { described, isSecret, line, nameLine, nearest, shown, withoutCredentials } from './shown.js'

/** All codes that an error of this package may have. Codes never change once published. */
export const ERROR_CODES = [
  'INVALID_ARGUMENT',
  'SHAPE_MISMATCH',
  'DTYPE_MISMATCH',
  'DEVICE_MISMATCH',
  'DIM_MISMATCH',
  'CACHE_OVERFLOW',
  'CACHE_EMPTY',
  'CANNOT_ROLL_BACK',
  'SNAPSHOT_INVALID',
  'STALE_VIEW',
  'SEQUENCE_NOT_FOUND',
  'POSITION_OUT_OF_RANGE',
  'OUT_OF_BLOCKS',
  'INVALID_BLOCK',
  'OUT_OF_MEMORY',
  'DISPOSED',
  'POISONED',
  'DEVICE_UNAVAILABLE',
  'INTERNAL',
  'BUSY',
  'TRANSACTION_OPEN',
  'TRANSACTION_CLOSED',
  'STEP_INCOMPLETE',
  'STALE_STEP',
  'INVALID_PATH',
  'NOT_CONTIGUOUS',
  'UNSUPPORTED_MODEL',
  'BINDING_NOT_FOUND',
  'BINDING_MISMATCH',
  'BINDING_CONFLICT',
  'ABORTED',
  'UNSUPPORTED_GRAPH',
  'INVALID_GRAPH',
  'RUNTIME_UNAVAILABLE',
  'RUNTIME_FAILED',
  'NOT_FINITE',
  'INCOMPATIBLE',
  'CORRUPT',
  'IO_ERROR',
  'CONTEXT_OVERFLOW',
  'MODEL_NOT_FOUND',
  'HUB_UNAVAILABLE',
  'INVALID_TOKENIZER',
  'TEMPLATE_FAILED',
  'INVALID_GRAMMAR',
] as const
Object.freeze(ERROR_CODES)

/** One of {@link ERROR_CODES}. */
export type ErrorCode = (typeof ERROR_CODES)[number]

/** The refused argument, its value, and what was expected. */
export interface ArgumentDetails {
  readonly argument: string
  /** The value if it is a number, a boolean or a short text; otherwise its kind, in one line. A secret is never shown. */
  readonly value: unknown
  readonly expected: string
}

/** The fields of `details` for each code. Codes that are not listed have no fields. */
export interface ErrorDetailsByCode {
  /** `operation`, `driverError` and `driverCode` are those of a GPU. */
  readonly INTERNAL: {
    readonly reason?: string
    readonly operation?: string
    readonly driverError?: string
    readonly driverCode?: number
  }
  readonly INVALID_ARGUMENT: ArgumentDetails
  readonly SHAPE_MISMATCH: ArgumentDetails
  readonly DTYPE_MISMATCH: ArgumentDetails
  readonly DEVICE_MISMATCH: ArgumentDetails
  readonly DIM_MISMATCH: {
    readonly argument: string
    readonly value: number
    readonly actual: number
    readonly expected: number
  }
  readonly CACHE_OVERFLOW: {
    readonly seqLen: number
    readonly newTokens: number
    readonly maxSeqLen: number
    /** The slots of the buffer, if they ran out: `incrementSeqLen` counts tokens that are already in slots. */
    readonly capacity?: number
  }
  readonly CACHE_EMPTY: { readonly operation: string }
  readonly CANNOT_ROLL_BACK: {
    readonly requested: number
    readonly seqLen: number
    readonly reason: string
    /** In a cache with states, the nearest lengths at which there is a state. */
    readonly below?: number
    readonly above?: number
  }
  readonly SNAPSHOT_INVALID: { readonly reason: string }
  readonly SEQUENCE_NOT_FOUND: { readonly seq: number }
  readonly POSITION_OUT_OF_RANGE: {
    readonly seq: number
    readonly layer: number
    readonly pos: number
    readonly length: number
  }
  readonly OUT_OF_BLOCKS: {
    readonly needed: number
    readonly free: number
    readonly group?: number
    /** The number of open sequences. */
    readonly sequences?: number
    /** Blocks that sequences, snapshots, matches and loads hold. */
    readonly held?: number
  }
  readonly INVALID_BLOCK: { readonly block: number; readonly reason: string }
  readonly OUT_OF_MEMORY: { readonly requestedBytes: number; readonly usedBytes: number; readonly limitBytes: number }
  readonly DISPOSED: { readonly object: string }
  readonly DEVICE_UNAVAILABLE: { readonly device: string; readonly reason: string }
  readonly TRANSACTION_OPEN: { readonly object: string }
  readonly STEP_INCOMPLETE: { readonly layers: readonly number[] }
  readonly STALE_STEP: { readonly seq: number }
  readonly INVALID_PATH: { readonly place: number; readonly node: number; readonly reason: string }
  readonly UNSUPPORTED_MODEL: ArgumentDetails
  readonly NOT_CONTIGUOUS: { readonly operation: string; readonly pieces: string }
  readonly BINDING_NOT_FOUND: { readonly platform: string; readonly reason: string }
  readonly BINDING_MISMATCH: { readonly file: string; readonly version: string; readonly expected: string }
  readonly BINDING_CONFLICT: { readonly file: string; readonly loaded: string }
  readonly UNSUPPORTED_GRAPH: {
    readonly node: string
    readonly operator: string
    readonly reason: string
    /** The kind of the reason. Each has advice, which the message ends with. */
    readonly kind: GraphRefusal
  }
  readonly INVALID_GRAPH: {
    readonly expected: string
    /** The place in the model's bytes. */
    readonly offset?: number
    /** The node or the tensor that is wrong. */
    readonly node?: string
    readonly tensor?: string
    /** The file that is not a model, or the weight file that is missing or too short. */
    readonly file?: string
  }
  readonly RUNTIME_UNAVAILABLE: { readonly runtime: string; readonly reason: string }
  readonly RUNTIME_FAILED: { readonly reason: string; readonly node?: string }
  readonly NOT_FINITE: { readonly row: number }
  readonly INCOMPATIBLE: {
    /** The field that differs: `namespace`, `dtype`, `groups[0].headDim`, `salt`, ... */
    readonly field: string
    /** The saved value. */
    readonly value: string
    /** The value that is needed here. */
    readonly expected: string
  }
  readonly CORRUPT: {
    /** The damaged part: a tensor, a page, the header. */
    readonly part: string
    readonly value: string
    readonly expected: string
  }
  readonly IO_ERROR: { readonly operation: string; readonly path: string; readonly reason: string }
  /** The tokens of the sequence, including those given with the call, and the maximum that the model can see at once. */
  readonly CONTEXT_OVERFLOW: { readonly tokens: number; readonly contextLength: number }
  readonly MODEL_NOT_FOUND: {
    /** The model, `org/name`. */
    readonly model: string
    readonly revision: string
    /** The cause and the remedy: no such model, its terms are not accepted, no graph of the dtype, ... */
    readonly reason: string
  }
  readonly HUB_UNAVAILABLE: {
    readonly model: string
    /** The address of the Hub. */
    readonly endpoint: string
    readonly reason: string
    /** The model's folder in the cache, into which the files can be copied. */
    readonly folder: string
  }
  /** The file, and the problem with it. */
  readonly INVALID_TOKENIZER: { readonly file: string; readonly reason: string }
  /** The reason of the template's author, or the problem with the template. */
  readonly TEMPLATE_FAILED: { readonly reason: string }
  readonly INVALID_GRAMMAR: {
    readonly reason: string
    /** The place, if it is known: a path in the schema, a line and a column, a character of a regular expression, or the number of generated tokens. */
    readonly place?: string
  }
}

/** The `details` of an error with code `C`. */
export type ErrorDetails<C extends ErrorCode = ErrorCode> = C extends keyof ErrorDetailsByCode
  ? ErrorDetailsByCode[C]
  : Readonly<Record<string, unknown>>

/**
 * The error of every refused call. `code` names the problem, `details` has the numbers.
 *
 * @example
 * ```ts
 * import { KvCache, isKvTideError } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * try {
 *   cache.truncate(5)
 * } catch (error) {
 *   if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
 *   console.log(error.details.requested) // 5
 * }
 * ```
 */
export class KvTideError<C extends ErrorCode = ErrorCode> extends Error {
  /** The problem, as a name that never changes. */
  readonly code: C
  /** The values that explain the error. */
  readonly details: ErrorDetails<C>

  constructor(code: C, message: string, details: ErrorDetails<C>, options?: ErrorOptions) {
    super(inLength(message), options)
    this.code = code
    this.details = details
    // V8 formats the stack when it is first read, so `name` is set to show the code in it, and reset afterwards.
    this.name = `KvTideError [${code}]`
    void this.stack
    Object.defineProperty(this, 'name', { value: 'KvTideError', configurable: true, enumerable: false, writable: true })
  }

  override toString(): string {
    return `${this.name} [${this.code}]: ${this.message}`
  }
}

/** The longest message of an error. A library's own text may be longer: `details` have all of it. */
const MESSAGE_LENGTH = 300

/** The characters of a longer message that are kept from its beginning. onnxruntime ends its messages with the reason. */
const BEGINNING = 119

/** @internal A text in the length of a message: a longer one is cut in the middle. */
export function inLength(text: string): string {
  if (typeof text !== 'string' || text.length <= MESSAGE_LENGTH) return text
  return `${text.slice(0, BEGINNING)}…${text.trimEnd().slice(BEGINNING + 1 - MESSAGE_LENGTH)}`
}

/** @internal A problem and advice in the length of a message: the problem is cut, the advice is whole. */
export function advised(problem: string, advice: string): string {
  const most = MESSAGE_LENGTH - advice.length - 2
  return `${problem.length > most ? `${problem.slice(0, most - 1)}…` : problem}; ${advice}`
}

/** @internal The error of a graph that a backend does not run. Its message ends with advice. */
export function refusedGraph(
  problem: string,
  details: ErrorDetails<'UNSUPPORTED_GRAPH'>,
): KvTideError<'UNSUPPORTED_GRAPH'> {
  return new KvTideError('UNSUPPORTED_GRAPH', advised(problem, GRAPH_ADVICE[details.kind]), details)
}

/** @internal The place and the reason of a graph's refusal, and the help for it; `undefined` for other errors, whose messages have all of it. */
export function adviceOf(error: KvTideError): { readonly place: string; readonly help: string } | undefined {
  if (!isKvTideError(error) || error.code !== 'UNSUPPORTED_GRAPH') return undefined
  const { node, operator, reason, kind } = error.details
  return { place: `${node} (${operator}): ${reason}`, help: GRAPH_ADVICE[kind] }
}

/** A {@link KvTideError} whose `details` follow from its `code`. */
export type AnyKvTideError = { [C in ErrorCode]: KvTideError<C> }[ErrorCode]

/** True for an error of this package. TypeScript then infers the type of `details` from `code`. */
export function isKvTideError(error: unknown): error is AnyKvTideError {
  try {
    return error instanceof KvTideError
  } catch {
    // A revoked proxy: every operation on one throws.
    return false
  }
}

/** @internal The error of a wrong argument. Its value is shown in one line; if the value is or may be a secret, only its kind is shown. */
export function invalid(
  argument: string,
  value: unknown,
  expected: string,
  isHidden: boolean = isSecret(argument),
): KvTideError<'INVALID_ARGUMENT'> {
  const [about, wanted] = [described(argument, value, isHidden), withoutCredentials(expected)]
  return new KvTideError('INVALID_ARGUMENT', `${argument} is ${shown(value, about)}, expected ${wanted}`, {
    argument,
    value: about,
    expected: wanted,
  })
}

/** @internal The error of an unknown option. Its value is not shown: it may be a secret under a misspelled name. */
export function unknownOption(
  argument: string,
  name: string,
  known: readonly string[],
): KvTideError<'INVALID_ARGUMENT'> {
  const path = `${argument}.${nameLine(name)}`
  const meant = nearest(name, known)
  const expected = `${meant === undefined ? 'one of the known options' : `${meant}, or another known option`}: ${known.join(', ')}`
  const hint = meant === undefined ? '.' : `; did you mean '${meant}'?`
  return new KvTideError('INVALID_ARGUMENT', `${path} is an unknown option${hint} Known options: ${known.join(', ')}`, {
    argument: path,
    value: 'an unknown option',
    expected,
  })
}

/** @internal The text of anything that was thrown. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown)
}

/** @internal The error of an operation that a signal has aborted. */
export function abortedBy(signal: AbortSignal | undefined): KvTideError<'ABORTED'> {
  return new KvTideError('ABORTED', 'aborted by its signal', {}, { cause: signal?.reason })
}

/** @internal Throws `ABORTED` if the signal is aborted. */
export function checkSignal(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw abortedBy(signal)
}

/** @internal An error of the addon. Its texts may contain a caller's values, so they are shortened, and credentials are removed. */
export function refusalOf(code: ErrorCode, message: string, details: Readonly<Record<string, unknown>>): KvTideError {
  const cleaned = Object.entries(details).map(([name, value]) => [
    name,
    typeof value !== 'string' ? value : name === 'value' ? line(value, VALUE_MAX) : withoutCredentials(value),
  ])
  const shownDetails = Object.fromEntries(cleaned) as Record<string, unknown>
  if (code === 'UNSUPPORTED_GRAPH')
    return refusedGraph(withoutCredentials(message), {
      ...(shownDetails as ErrorDetails<'UNSUPPORTED_GRAPH'>),
      kind: graphRefusalOf(shownDetails),
    })
  return new KvTideError(code, withoutCredentials(message), shownDetails as never)
}

/** The maximum number of characters of a value that the addon shows: a shape, a list. */
const VALUE_MAX = 200
