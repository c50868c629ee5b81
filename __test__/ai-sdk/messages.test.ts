// Prompts of the AI SDK become messages; parts that the model can't read are refused.
import { UnsupportedFunctionalityError } from '@ai-sdk/provider'
import test from 'ava'

import { messagesOf } from '../../packages/ai-sdk/lib/messages.js'

test('all roles and kinds of text become messages', t => {
  const messages = messagesOf([
    { role: 'system', content: 'Be brief.' },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'Read ' },
        { type: 'file', mediaType: 'text/plain', data: { type: 'data', data: new TextEncoder().encode('this: ä') } },
        { type: 'file', mediaType: 'text/csv', data: { type: 'data', data: btoa('a,b') } },
      ],
    },
    {
      role: 'assistant',
      content: [
        { type: 'reasoning', text: 'hm' },
        { type: 'text', text: 'I look.' },
        { type: 'tool-call', toolCallId: 'c1', toolName: 'weather', input: { city: 'Rome' } },
      ],
    },
    {
      role: 'tool',
      content: [
        {
          type: 'tool-result',
          toolCallId: 'c1',
          toolName: 'weather',
          output: { type: 'json', value: { sky: 'sunny' } },
        },
        { type: 'tool-approval-response', approvalId: 'a', approved: true },
      ],
    },
  ])
  t.deepEqual(messages, [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'Read this: äa,b' },
    {
      role: 'assistant',
      content: 'I look.',
      reasoning_content: 'hm',
      tool_calls: [{ id: 'c1', type: 'function', function: { name: 'weather', arguments: '{"city":"Rome"}' } }],
    },
    { role: 'tool', tool_call_id: 'c1', name: 'weather', content: '{"sky":"sunny"}' },
  ])
})

/** Returns the text of a tool's result. */
const shown = (output: Output): unknown => messagesOf([result(output)])[0]?.content

test('results of all kinds become text', t => {
  t.is(shown({ type: 'text', value: 'x' }), 'x')
  t.is(shown({ type: 'error-text', value: 'no' }), 'no')
  t.is(shown({ type: 'error-json', value: [1] }), '[1]')
  t.is(shown({ type: 'execution-denied' }), 'The call was denied.')
  t.is(shown({ type: 'execution-denied', reason: 'late' }), 'The call was denied: late')
  t.is(
    shown({
      type: 'content',
      value: [
        { type: 'text', text: 'a' },
        { type: 'text', text: 'b' },
      ],
    }),
    'ab',
  )
  t.throws(() => shown({ type: 'content', value: [{ type: 'custom' }] }), { instanceOf: UnsupportedFunctionalityError })
})

test('a call without text has no content', t => {
  const [message] = messagesOf([
    { role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'c', toolName: 'f', input: {} }] },
  ])
  t.is(message?.content, null)
})

test('images and files that are no text are refused by their type', t => {
  for (const data of [
    { type: 'data', data: new Uint8Array(4) },
    { type: 'url', url: new URL('https://example.org/a.png') },
  ] as const) {
    const error = t.throws(() =>
      messagesOf([{ role: 'user', content: [{ type: 'file', mediaType: 'image/png', data }] }]),
    )
    t.true(UnsupportedFunctionalityError.isInstance(error))
    t.regex(error.message, /image\/png/)
  }
  const reply = { type: 'file', mediaType: 'image/png', data: { type: 'data', data: '' } } as const
  t.throws(() => messagesOf([{ role: 'assistant', content: [reply] }]), { instanceOf: UnsupportedFunctionalityError })
})

type Output = Extract<
  Extract<Parameters<typeof messagesOf>[0][number], { role: 'tool' }>['content'][number],
  { type: 'tool-result' }
>['output']

function result(output: Output): Parameters<typeof messagesOf>[0][number] {
  return { role: 'tool', content: [{ type: 'tool-result', toolCallId: 'c', toolName: 'f', output }] }
}
