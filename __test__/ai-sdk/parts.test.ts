// Events become blocks: each has a start, deltas and an end, and one is open at a time.
import test from 'ava'
import type { TextEvent } from 'kvtide/text'

import { Parts } from '../../packages/ai-sdk/lib/parts.js'

const usage = {
  promptTokens: 100,
  cachedTokens: 90,
  computedTokens: 10,
  generatedTokens: 9,
  draftedTokens: 0,
  acceptedTokens: 0,
  firstTokenMs: 1,
  tokensPerSecond: 2,
}

test('reasoning, text and calls are blocks of their own', t => {
  const parts = new Parts()
  const events: TextEvent[] = [
    { type: 'reasoning', text: 'Let', tokens: [1] },
    { type: 'reasoning', text: ' me', tokens: [2, 3] },
    { type: 'text', text: '', tokens: [4] },
    { type: 'text', text: 'Yes', tokens: [5] },
    { type: 'text', text: '.', tokens: [6] },
    { type: 'tool-call', index: 0, id: 'c1', name: 'weather' },
    { type: 'tool-arguments', index: 0, text: '{"city":' },
    { type: 'tool-arguments', index: 0, text: '"Rome"}' },
    { type: 'tool-call', index: 1, id: 'c2', name: 'now' },
    { type: 'finish', finishReason: 'tool_calls', usage },
  ]
  t.deepEqual(
    events.flatMap(event => parts.of(event)),
    [
      { type: 'reasoning-start', id: '0' },
      { type: 'reasoning-delta', id: '0', delta: 'Let' },
      { type: 'reasoning-delta', id: '0', delta: ' me' },
      { type: 'reasoning-end', id: '0' },
      { type: 'text-start', id: '1' },
      { type: 'text-delta', id: '1', delta: 'Yes' },
      { type: 'text-delta', id: '1', delta: '.' },
      { type: 'text-end', id: '1' },
      { type: 'tool-input-start', id: 'c1', toolName: 'weather' },
      { type: 'tool-input-delta', id: 'c1', delta: '{"city":' },
      { type: 'tool-input-delta', id: 'c1', delta: '"Rome"}' },
      { type: 'tool-input-end', id: 'c1' },
      { type: 'tool-call', toolCallId: 'c1', toolName: 'weather', input: '{"city":"Rome"}' },
      { type: 'tool-input-start', id: 'c2', toolName: 'now' },
      { type: 'tool-input-end', id: 'c2' },
      { type: 'tool-call', toolCallId: 'c2', toolName: 'now', input: '{}' },
      {
        type: 'finish',
        finishReason: { unified: 'tool-calls', raw: 'tool_calls' },
        usage: {
          inputTokens: { total: 100, noCache: 10, cacheRead: 90, cacheWrite: undefined },
          outputTokens: { total: 9, text: 6, reasoning: 3 },
          raw: usage,
        },
      },
    ],
  )
})

test('reasons keep their own name', t => {
  for (const raw of ['stop', 'length'] as const)
    t.deepEqual(
      new Parts()
        .of({ type: 'finish', finishReason: raw, usage })
        .map(part => part.type === 'finish' && part.finishReason),
      [{ unified: raw, raw }],
    )
})
