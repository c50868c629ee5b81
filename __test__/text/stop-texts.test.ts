// Stop texts, in whatever pieces the text comes.
import test from 'ava'

import { StopTexts } from '../../lib/text/stop-texts.js'
import { Random, split } from '../support/text/random.js'

/** The text in front of the stop text that is complete first, and the longest that ends there. */
function naive(text: string, stops: readonly string[]): { text: string; isStopped: boolean } {
  for (let end = 1; end <= text.length; end++) {
    const ending = stops.filter(stop => text.slice(0, end).endsWith(stop)).map(stop => stop.length)
    if (ending.length > 0) return { text: text.slice(0, end - Math.max(...ending)), isStopped: true }
  }
  return { text, isStopped: false }
}

test('the answer ends in front of the first stop text, in every split', t => {
  const random = new Random(11)
  const letters = (count: number): string => Array.from({ length: count }, () => 'aab\n'[random.below(4)]).join('')
  for (let round = 0; round < 3000; round++) {
    const stops = Array.from({ length: random.below(4) }, () => letters(1 + random.below(4)))
    const text = letters(random.below(14))
    const stop = new StopTexts(stops)
    let given = ''
    for (const piece of split(random, text, 3)) {
      given += stop.push(piece)
      if (stop.isStopped) break
      // Held back is what may still become a stop text, and nothing else.
      const all = text.slice(0, given.length + heldOf(text, given, stops))
      t.true(text.startsWith(all))
    }
    given += stop.end()
    t.deepEqual({ text: given, isStopped: stop.isStopped }, naive(text, stops), JSON.stringify({ stops, text }))
  }
})

const heldOf = (text: string, given: string, stops: readonly string[]): number =>
  Math.max(
    0,
    ...stops.map(stop =>
      [...stop].findIndex((_, length) => text.slice(given.length).startsWith(stop.slice(0, length))),
    ),
  )

test('text is held back only while it can still become a stop text', t => {
  const stop = new StopTexts(['END', 'stop'])
  t.is(stop.push('an'), 'an')
  t.is(stop.push(' E'), ' ')
  t.is(stop.push('N'), '')
  t.is(stop.push('J'), 'ENJ')
  t.is(stop.push('sto'), '')
  t.is(stop.push('pp'), '')
  t.true(stop.isStopped)
  t.is(stop.push('more'), '')
  t.is(stop.end(), '')
})

test('a stop text of several tokens is no part of the answer, nor is what is behind it', t => {
  const stop = new StopTexts(['\nUser:'])
  t.is(stop.push('Hi\nUs'), 'Hi')
  t.is(stop.push('er: next'), '')
  t.true(stop.isStopped)
})

test('text that was given out, as in front of a call, cannot become a stop text any more', t => {
  const stop = new StopTexts(['END'])
  t.is(stop.push('the EN'), 'the ')
  t.is(stop.end(), 'EN')
  t.is(stop.push('D of EN'), 'D of ')
  t.false(stop.isStopped)
  t.is(stop.push('D.'), '')
  t.true(stop.isStopped)
})
