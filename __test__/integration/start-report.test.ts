// The report of `npm start` in a browser: all of it is visible, on a phone as well.
import { page } from '../../examples/start/report.js'
import { browserTest } from '../support/browser.js'
import { span } from '../support/tokens.js'

const answer = (computed: number) => ({
  computed,
  text: 'An answer <of> a few words.',
  prompt: 10_000,
  found: 10_003 - computed,
  first: computed / 30,
  all: computed / 10,
})
const ways = [...span(0, 20).map(() => 'question' as const), 'next turn', 'edit', 'roll-back', 'fork'] as const
const html = page({
  summary: 'All tokens are the same.',
  rows: [
    ['', 'onnxruntime-node', 'kvtide'],
    ['prompt tokens found', '0', '9,289 of 10,000'],
    ['first token, 95 of 100', '28.8 ms', '12.5 ms'],
  ],
  requests: ways.map(way => ({ way, question: 'A question?', answers: [answer(427), answer(27)] })),
})

browserTest('the report of the start shows both sides at 360 pixels', async (t, browser) => {
  for (const colorScheme of ['light', 'dark'] as const) {
    const view = await browser.newPage({ viewport: { width: 360, height: 800 }, colorScheme })
    await view.goto(`data:text/html;charset=utf-8,${encodeURIComponent(html)}`)
    t.true(await view.evaluate('document.documentElement.scrollWidth <= 360'), 'nothing sticks out')
    t.deepEqual(
      await view.evaluate('[...document.querySelectorAll(".scroll")].map(box => box.scrollWidth - box.clientWidth)'),
      [0, 0, 0],
      'and nothing is hidden at the side',
    )
    t.is(await view.locator('rect').count(), 2 * 2 * ways.length)
    t.is(await view.locator('dd').first().textContent(), 'An answer <of> a few words.')
    await view.close()
  }
})
