/** Every code that an error of this package may have. Codes never change once published. */
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
] as const
Object.freeze(ERROR_CODES)

/** One of {@link ERROR_CODES}. */
export type ErrorCode = (typeof ERROR_CODES)[number]

/** The argument that was refused, its value, and what was expected. */
export interface ArgumentDetails {
  readonly argument: string
  readonly value: unknown
  readonly expected: string
}

/** The fields of `details` for each code. Codes that are not listed have no fields. */
export interface ErrorDetailsByCode {
  readonly INVALID_ARGUMENT: ArgumentDetails
  readonly SHAPE_MISMATCH: ArgumentDetails
  readonly DTYPE_MISMATCH: ArgumentDetails
  readonly DEVICE_MISMATCH: ArgumentDetails
  readonly DIM_MISMATCH: { readonly argument: string; readonly value: number; readonly actual: number; readonly expected: number }
  readonly CACHE_OVERFLOW: {
    readonly seqLen: number
    readonly newTokens: number
    readonly maxSeqLen: number
    /** The slots of the buffer, where they ran out: `incrementSeqLen` counts tokens that are already in slots. */
    readonly capacity?: number
  }
  readonly CACHE_EMPTY: { readonly operation: string }
  readonly CANNOT_ROLL_BACK: { readonly requested: number; readonly seqLen: number; readonly reason: string }
  readonly SNAPSHOT_INVALID: { readonly reason: string }
  readonly SEQUENCE_NOT_FOUND: { readonly seq: number }
  readonly POSITION_OUT_OF_RANGE: {
    readonly seq: number
    readonly layer: number
    readonly pos: number
    readonly length: number
  }
  readonly OUT_OF_BLOCKS: { readonly needed: number; readonly free: number; readonly group?: number }
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
  readonly UNSUPPORTED_GRAPH: { readonly node: string; readonly operator: string; readonly reason: string }
  readonly INVALID_GRAPH: {
    readonly expected: string
    /** Where in the model's bytes. */
    readonly offset?: number
    /** The node, or the tensor, that is wrong. */
    readonly node?: string
    readonly tensor?: string
    /** The file that is no model; or the one with weights that is missing or too short. */
    readonly file?: string
  }
  readonly RUNTIME_UNAVAILABLE: { readonly runtime: string; readonly reason: string }
  readonly RUNTIME_FAILED: { readonly reason: string; readonly node?: string }
  readonly NOT_FINITE: { readonly row: number }
  readonly INCOMPATIBLE: {
    /** The field that differs: `namespace`, `dtype`, `groups[0].headDim`, `salt`, ... */
    readonly field: string
    /** What was saved. */
    readonly value: string
    /** What it is here. */
    readonly expected: string
  }
  readonly CORRUPT: {
    /** What is damaged: a tensor, a page, the header. */
    readonly part: string
    readonly value: string
    readonly expected: string
  }
  readonly IO_ERROR: { readonly operation: string; readonly path: string; readonly reason: string }
}

/** The `details` of an error with code `C`. */
export type ErrorDetails<C extends ErrorCode = ErrorCode> = C extends keyof ErrorDetailsByCode
  ? ErrorDetailsByCode[C]
  : Readonly<Record<string, unknown>>

/**
 * What every refused call throws. `code` says what is wrong, `details` has the numbers.
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
  /** What is wrong, as a name that never changes. */
  readonly code: C
  /** The values that say why. */
  readonly details: ErrorDetails<C>

  constructor(code: C, message: string, details: ErrorDetails<C>, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.details = details
    // V8 writes the stack when it is first read; it then begins with the name and the code.
    this.name = `KvTideError [${code}]`
    void this.stack
    Object.defineProperty(this, 'name', { value: 'KvTideError', configurable: true, enumerable: false, writable: true })
  }

  override toString(): string {
    return `${this.name} [${this.code}]: ${this.message}`
  }
}

/** A {@link KvTideError} whose `details` follow from its `code`. */
export type AnyKvTideError = { [C in ErrorCode]: KvTideError<C> }[ErrorCode]

/** True for an error of this package. TypeScript then knows its `details` by its `code`. */
export function isKvTideError(error: unknown): error is AnyKvTideError {
  try {
    return error instanceof KvTideError
  } catch {
    // A revoked proxy: every operation on one throws.
    return false
  }
}

/** @internal The error of a wrong argument. */
export function invalid(argument: string, value: unknown, expected: string): KvTideError<'INVALID_ARGUMENT'> {
  return new KvTideError('INVALID_ARGUMENT', `${argument} is ${show(value)}, expected ${expected}`, {
    argument,
    value,
    expected,
  })
}

function showObject(value: object): string {
  try {
    if (Array.isArray(value)) return `an array of ${value.length}`
    if (ArrayBuffer.isView(value)) return `${Object.prototype.toString.call(value).slice(8, -1)} of ${value.byteLength} bytes`
  } catch {
    // A proxy or a getter of the caller's own.
  }
  return 'an object'
}

/** A value as a message shows it: short. Showing a value never throws. */
function show(value: unknown): string {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}…` : value)
    case 'bigint':
      return `${value}n`
    case 'function':
      return 'a function'
    case 'object':
      return value === null ? 'null' : showObject(value)
    default:
      return Object.is(value, -0) ? '-0' : String(value)
  }
}
