// Errors of kvtide become those of the AI SDK, with the original as the cause; an abort keeps its reason.
import { AISDKError, APICallError, InvalidArgumentError, InvalidPromptError, NoSuchModelError } from '@ai-sdk/provider'
import test from 'ava'
import { KvTideError } from 'kvtide'

import { sdkError } from '../../packages/ai-sdk/lib/errors.js'
import { question } from './demo.js'

const blocks = (needed: number): KvTideError =>
  new KvTideError('OUT_OF_BLOCKS', 'no room', { needed, free: 2, sequences: 3, held: 4 })

test('each code has its class', t => {
  const cases = [
    [new KvTideError('INVALID_ARGUMENT', 'x', { argument: 'topP', value: 2, expected: 'less' }), InvalidArgumentError],
    [new KvTideError('CONTEXT_OVERFLOW', 'x', {} as never), InvalidPromptError],
    [new KvTideError('MODEL_NOT_FOUND' as 'INTERNAL', 'x', {}), NoSuchModelError],
    [new KvTideError('INVALID_GRAMMAR' as 'INTERNAL', 'x', {}), InvalidArgumentError],
    [blocks(5), APICallError],
    [new KvTideError('INTERNAL', 'x', {}), AISDKError],
  ] as const
  for (const [error, type] of cases) {
    const made = sdkError(error, 'm', question('?')) as AISDKError
    t.true(made instanceof type, error.code)
    t.is(made.cause, error)
    t.true(made.message.includes(error.message))
  }
  t.is((sdkError(cases[0][0], 'm') as InvalidArgumentError).argument, 'topP')
})

test('memory that others hold is worth another try, a prompt beyond the pool is not', t => {
  t.true((sdkError(blocks(6), 'm') as APICallError).isRetryable)
  t.false((sdkError(blocks(7), 'm') as APICallError).isRetryable)
})

test('an abort gives the reason of its signal, other errors pass', t => {
  const reason = new Error('enough')
  const abortSignal = AbortSignal.abort(reason)
  t.is(sdkError(new KvTideError('ABORTED', 'x', {}), 'm', question('?', { abortSignal })), reason)
  const own = new RangeError('x')
  t.is(sdkError(own, 'm', question('?')), own)
})
