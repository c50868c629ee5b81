// Caches with states in the inspector: checkpoints of sequences and of cached prompts, their positions and bytes, and lost tokens.
import test from 'ava'

import { type PagedKvCache } from '../../index.js'
import { inspect } from '../../inspector.js'
import type { Message } from '../../lib/inspector/messages.js'
import { browserTest, type Page } from '../support/browser.js'
import { compute, hybridCache, MAMBA, step } from '../support/hybrid.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

type Told<Kind extends Message['kind']> = Extract<Message, { kind: Kind }>

/** Reads the messages of a page. The function that is returned reads on until one fits. */
async function followed(url: string, group: number) {
  const response = await fetch(`${url}events?group=${group}`)
  const reader = (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream()).getReader()
  const messages: Message[] = []
  let text = ''
  return async <Kind extends Message['kind']>(
    kind: Kind,
    fits: (message: Told<Kind>) => boolean = () => true,
  ): Promise<Told<Kind>> => {
    for (;;) {
      const found = messages.find(message => message.kind === kind && fits(message as Told<Kind>))
      if (found !== undefined) return found as Told<Kind>
      const { value, done } = await reader.read()
      if (done) throw new Error('the stream has ended')
      const parts = (text + value).split('\n\n')
      text = parts.pop() as string
      messages.push(...parts.map(part => JSON.parse(part.slice('data: '.length)) as Message))
    }
  }
}

const endsOf = ({ ends }: Told<'ends'>): number[] => {
  const bytes = Buffer.from(ends, 'base64')
  return [...new Uint32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length))]
    .filter(end => end > 0)
    .toSorted((a, b) => a - b)
}

/** A prompt whose sequence is closed, one that is open, and a prompt that finds less than attention has. */
function used(cache: PagedKvCache): { open: ReturnType<typeof compute>; lost: number } {
  compute(cache, span(0, 24), [8, 20]).dispose()
  const open = compute(cache, span(500, 514), [8])
  step(cache, open, [1, 2])
  cache.match([...span(0, 18), 99]).dispose()
  return { open, lost: 8 }
}

test('positions of checkpoints, of cached prompts and of sequences', async t => {
  using cache = hybridCache({ capacity: [40, 12] })
  await using inspector = inspect(cache)
  const { open } = used(cache)
  const url = await inspector.listen()
  const told = await followed(url, 1)
  const { groups } = await told('hello')
  const bytes = cache.groups[1]?.bytes
  t.deepEqual(groups, [
    { kind: 'full', layers: 2, blocks: 40 },
    { kind: 'state', layers: 2, blocks: 12, bytes },
  ])
  t.deepEqual(endsOf(await told('ends')), [8, 8, 16, 20, 24])
  const tree = await told('tree')
  t.deepEqual([tree.lengths, tree.checkpoints], [{ [open.id]: 16 }, { [open.id]: [8, 16] }])
  // Sequences share blocks of tokens, so the tree is the one of those.
  const fork = open.fork()
  step(cache, fork, [3])
  const shared = await told('tree', ({ lengths }) => lengths[fork.id] === 17)
  t.deepEqual(
    shared.tree.map(({ from, to }) => [from, to]),
    [[0, 4]],
  )
  t.deepEqual(shared.checkpoints?.[fork.id], [8, 16])
  // A map of attention's blocks has no positions, and the same checkpoints of sequences.
  const other = await followed(url, 0)
  t.deepEqual((await other('tree')).checkpoints?.[open.id], [8, 16])
  cache.forgetPrefixes()
  t.deepEqual(endsOf(await told('ends', message => endsOf(message).length === 0)), [])
})

test('lost tokens are a metric, and explain says where checkpoints are', async t => {
  using cache = hybridCache()
  await using inspector = inspect(cache, { name: 'h' })
  const { lost } = used(cache)
  t.is(cache.stats().lostTokens, lost)
  t.true(inspector.metrics().includes(`\nkvtide_lost_tokens_total{cache="h"} ${lost}\n`))
  const url = await inspector.listen()
  const tokens = [...span(0, 18), 99]
  const response = await fetch(`${url}explain`, { method: 'POST', body: JSON.stringify({ tokens }) })
  const answer: unknown = await response.json()
  t.deepEqual(answer, cache.explain(tokens))
  t.like(answer, { matched: 8, cached: 16, missing: { reason: 'no-state-here' } })
})

test('sequences of a model without attention are listed one by one', async t => {
  using cache = hybridCache({ model: MAMBA, capacity: 12 })
  await using inspector = inspect(cache)
  const [one, other] = [compute(cache, span(0, 9), [4, 8]), compute(cache, span(0, 10), [4, 8])]
  const told = await followed(await inspector.listen(), 0)
  const { tree, checkpoints } = await told('tree')
  t.deepEqual(
    tree.map(({ from, to, sequences }) => [from, to, sequences]),
    [
      [0, 0, [one.id]],
      [0, 0, [other.id]],
    ],
  )
  t.deepEqual(checkpoints, { [one.id]: [4, 8], [other.id]: [8] })
})

browserTest('the page shows checkpoints, lost tokens and the nearest states', async (t, browser) => {
  using cache = hybridCache({ capacity: [40, 12] })
  await using inspector = inspect(cache, { name: 'hybrid' })
  const { open, lost } = used(cache)
  const url = await inspector.listen()
  const page: Page = await browser.newPage({ viewport: { width: 1200, height: 900 } })
  const wrong: string[] = []
  page.on('pageerror', error => wrong.push(error.message))
  await page.goto(url)
  await page.waitForSelector('#tile-lost')
  t.is(await page.locator('#tile-lost b').textContent(), String(lost))
  t.is(await page.textContent('#states'), '', 'the blocks of attention')
  t.regex((await page.textContent('#tree')) ?? '', new RegExp(`sequence ${open.id} 16 tokens, checkpoints at 8, 16`))

  await page.evaluate(`(() => {
    const select = document.getElementById('group')
    select.value = '1'
    select.dispatchEvent(new Event('change'))
  })()`)
  t.is(cache.groups[1]?.bytes, 256)
  const summary = '5 checkpoints, 1.3 KiB, in 12 slots of 256 bytes'
  t.true(
    await until(async () => (await page.textContent('#states')) === summary),
    (await page.textContent('#states')) ?? '',
  )
  t.regex((await page.textContent('#legend')) ?? '', /a checkpoint/)
  const words: string[] = []
  await page.focus('#map')
  for (let slot = 0; slot < 12; slot++) {
    await page.keyboard.press(slot === 0 ? 'Home' : 'ArrowRight')
    words.push((await page.textContent('#block')) ?? '')
  }
  const expected = [
    ...['8', '8', '20', '24'].map(end => `a checkpoint behind ${end} tokens: prompts can continue here`),
    `the state of sequence ${open.id}, and a checkpoint behind 16 tokens`,
    ...Array.from({ length: 7 }, () => 'free'),
  ]
  t.deepEqual(words.map(text => text.replace(/^slot \d+: /, '')).toSorted(), expected.toSorted())
  await page.fill('#tokens', [...span(0, 18), 99].join(' '))
  await page.press('#salt', 'Enter')
  t.true(await until(async () => ((await page.textContent('#answer')) ?? '') !== ''))
  t.is(
    await page.textContent('#answer'),
    '8 of 19 tokens are cached. Block 2 is a miss: attention has it cached, but there is no checkpoint of the states behind it, nor behind a later block (no-state-here). The checkpoint below is at 8 tokens, there is none above; attention has 16 tokens',
  )
  t.deepEqual(wrong, [])
})
