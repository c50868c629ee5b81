// Errors: one class, codes that both languages agree on, details with the numbers.
import { inspect } from 'node:util'

import test from 'ava'

import {
  ERROR_CODES,
  type ErrorCode,
  type HostTensor,
  isKvTideError,
  KvCache,
  KvTideError,
  PagedKvCache,
  RotatingCache,
  Tensor,
} from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { inLength, invalid } from '../../lib/errors/errors.js'
import { refusal, throwsCode } from '../support/throws.js'
import { tokens } from '../support/tokens.js'

const make = (): KvCache => new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 1 })

/** The error when ten tokens are added to four of eight. */
function overflow(): unknown {
  using cache = make()
  cache.update(tokens(0, 4), tokens(0, 4))
  try {
    cache.update(tokens(0, 10), tokens(0, 10))
  } catch (error) {
    return error
  }
  return undefined
}

test('both languages have the same codes, in the same order', t => {
  t.deepEqual(binding.errorCodes(), [...ERROR_CODES])
  t.is(new Set(ERROR_CODES).size, ERROR_CODES.length)
  for (const code of ERROR_CODES) t.regex(code, /^[A-Z]+(_[A-Z]+)*$/)
})

test('the codes cannot be changed', t => {
  t.throws(() => (ERROR_CODES as unknown as string[]).push('MINE'), { instanceOf: TypeError })
})

test('a refusal of the addon reads as it should', t => {
  const error = overflow()
  t.true(isKvTideError(error))
  t.is(String(error), 'KvTideError [CACHE_OVERFLOW]: cannot append 10 tokens: 4 of 8 used')
  t.deepEqual((error as KvTideError).details, { seqLen: 4, newTokens: 10, maxSeqLen: 8 })
  t.true(
    (error as KvTideError).stack?.startsWith('KvTideError [CACHE_OVERFLOW]: cannot append 10 tokens: 4 of 8 used\n'),
  )
  t.true((error as KvTideError).stack?.includes('errors.test.ts'), 'the stack leads to the call')
})

test('a refusal of the typed layer reads the same', t => {
  const error = throwsCode(t, 'INVALID_ARGUMENT', () => make().truncate(-1), {
    argument: 'len',
    value: -1,
    expected: 'a whole number from 0 to 9007199254740991',
  })
  t.is(String(error), 'KvTideError [INVALID_ARGUMENT]: len is -1, expected a whole number from 0 to 9007199254740991')
})

test('it is an Error like any other', t => {
  const error = overflow() as KvTideError
  t.true(error instanceof KvTideError && error instanceof Error)
  t.is(Object.prototype.toString.call(error), '[object Error]')
  t.is(error.name, 'KvTideError')
  t.deepEqual(Object.keys(error).toSorted(), ['code', 'details'])
  t.true(inspect(error).startsWith('KvTideError [CACHE_OVERFLOW]: cannot append 10 tokens'))
  const cause = new Error('why')
  t.is(new KvTideError('INTERNAL', 'no', { reason: 'x' }, { cause }).cause, cause)
})

test('the code narrows the details', t => {
  const error = overflow()
  if (!isKvTideError(error)) return t.fail()
  switch (error.code) {
    case 'CACHE_OVERFLOW':
      return t.is(error.details.maxSeqLen - error.details.seqLen, 4)
    case 'OUT_OF_MEMORY':
      return t.fail(String(error.details.requestedBytes))
    default:
      return t.fail(error.code satisfies ErrorCode)
  }
})

test('other errors are told apart', t => {
  for (const other of [
    new Error('x'),
    Object.assign(new Error('x'), { code: 'CACHE_EMPTY', details: {} }),
    null,
    undefined,
    'CACHE_EMPTY',
    {},
  ]) {
    t.false(isKvTideError(other))
  }
  class Mine extends KvTideError {}
  t.true(isKvTideError(new Mine('ABORTED', 'stop', {})))
})

test('an error goes to another thread as an error', t => {
  const copy = structuredClone(overflow()) as Error
  t.true(copy instanceof Error)
  t.is(copy.message, 'cannot append 10 tokens: 4 of 8 used')
})

test('details name the argument, its value and what was expected, from both sides', t => {
  using cache = make()
  const calls: (() => unknown)[] = [
    () => cache.update(tokens(0, 1), tokens(0, 1).reshape([1, 1])),
    () => cache.update(tokens(0, 1), tokens(0, 1, 'f16')),
    () => new KvCache({ batchSize: 0, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 1 }),
    () => new RotatingCache({ dim: 9, maxSeqLen: 1 }),
    () => Tensor.from(new Float32Array(2), [3]),
    () => tokens(0, 1).narrow(9, 0, 0),
  ]
  for (const call of calls) {
    const error = refusal(t, call)
    t.deepEqual(Object.keys(error?.details ?? {}).toSorted(), ['argument', 'expected', 'value'], error?.message)
    t.true(error?.message.includes('expected'), error?.message)
  }
})

test('a message names any value, and never throws of its own', t => {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  const lying = Object.defineProperty(new Uint8Array(2), 'byteLength', { get: () => Symbol('x') })
  for (const [value, shown] of [
    ['a'.repeat(90), `"${'a'.repeat(80)}…"`],
    [10n, '10n'],
    [-0, '-0'],
    [Symbol('s'), 'Symbol(s)'],
    [() => 1, 'a function'],
    [null, 'null'],
    [undefined, 'undefined'],
    [[1, 2], 'an array of 2'],
    [new Float32Array(2), 'Float32Array of 8 bytes'],
    [{}, 'an object'],
    [proxy, 'an object'],
    [lying, 'Uint8Array of 2 bytes'],
    ['a"b\nc\u2028', '"a\\"b\\nc\\u2028"'],
    [2n ** 300n, 'a bigint of more than 256 bits'],
    [Promise.resolve(), 'a promise'],
    [
      new Proxy([1], {
        get: () => {
          throw new Error('mine')
        },
      }),
      'an array',
    ],
    ['redis://me:canary@host/1?token=canary', '"redis://…@host/1?token=…"'],
  ] as const) {
    t.is(invalid('it', value, 'else').message, `it is ${shown}, expected else`)
  }
})

test('a long message is cut in the middle, so that its beginning and its end are read', t => {
  for (const length of [1, 299, 300]) t.is(inLength('x'.repeat(length)).length, length)
  const text = `Failed to load: ${'f(const Path&) '.repeat(30)}Unsupported model IR version: 10, max supported IR version: 9\n`
  const cut = inLength(text)
  t.is(cut.length, 300)
  t.regex(cut, /^Failed to load: .*….* max supported IR version: 9$/)
})

const rows = (n: number): HostTensor => ({ data: new Float32Array(n), shape: [1, 1, n, 1] })

test('messages say what is open, and count as people do', t => {
  using cache = new PagedKvCache({ capacity: 2, blockSize: 1, numLayers: 1, numKvHeads: 1, headDim: 1 })
  const sequence = cache.openSequence()
  sequence.append({ k: rows(1), v: rows(1) })
  const message = (call: () => unknown): string => (t.throws(call) as Error).message
  t.is(
    message(() => sequence.append({ k: rows(2), v: rows(2) })),
    '2 blocks are needed, 1 is free: 1 sequence is open; sequences, snapshots, matches and loads hold 1 block',
  )
  const step = cache.beginStep({ sequences: [sequence] })
  t.is(
    message(() => sequence.append({ k: rows(1), v: rows(1) })),
    'a step is open on this sequence: commit it or roll it back first',
  )
  step.rollback()
  const draft = sequence.begin()
  t.is(
    message(() => sequence.append({ k: rows(1), v: rows(1) })),
    'a transaction is open on this sequence: commit it or roll it back first',
  )
  draft.rollback()
  using model = new PagedKvCache({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 1 }] }, capacity: 4 })
  const ofModel = model.openSequence()
  model.beginStep({ sequences: [ofModel] })
  t.is(
    message(() => ofModel.append({ k: rows(1), v: rows(1) })),
    'a step is open on this sequence: commit it or roll it back first',
  )
  using growing = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 1, headDim: 1 })
  growing.update(rows(1), rows(1))
  t.is(
    message(() => growing.update(rows(1), rows(1))),
    'cannot append 1 token: 1 of 1 used',
  )
})
