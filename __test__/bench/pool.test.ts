// The chart of the pool as it grows, and its part of the page.
import test from 'ava'

import { apart } from '../../bench/report/panel.js'
import { poolChart } from '../../bench/report/pool-chart.js'
import { poolSection } from '../../bench/report/pool-section.js'
import { callsOf, GROUPS, growthOf, PROMPTS, type Measured } from '../../bench/report/pool.js'
import { spreadOf } from '../../bench/report/spread.js'
import { apartPanels, wellFormed } from './reports.js'

const NAMES = [...new Set(GROUPS.flatMap(({ calls, read }) => [...calls, read]))]

/** The rounds of a time. */
const rounds = (time: number): number[] => [0.9, 1, 1.3].map(times => time * times)

/** Every call costs ten reads and 20 ns, whatever the size; what a read costs is told. */
function measured(reads: readonly number[] = [2, 5, 60, 150], own = 20): Measured {
  const calls = NAMES.map(name => ({
    name,
    per: name === 'fork' ? 'call' : 'block',
    nanoseconds: reads.map(read => rounds(name.startsWith('random') ? read : own + 10 * read)),
  }))
  return { rounds: 3, blocks: [1000, 10_000, 100_000, 1_000_000], bytes: [1, 2, 3, 4].map(size => [size * 2 ** 20, size * 2 ** 21] as const), calls, load: '0.25' }
}

/** The panels of a chart, one string each. */
const panels = (svg: string): string[] => svg.split('<g ').slice(1)

interface Box {
  readonly text: string
  readonly left: number
  readonly right: number
  readonly top: number
  readonly bottom: number
}

/** Where texts are, if letters are no wider than seven. */
function boxes(panel: string): Box[] {
  return [...panel.matchAll(/<text x="([\d.]+)" y="([\d.]+)"(?: text-anchor="(\w+)")?[^>]*>(.*?)<\/text>/g)].map(([, x, y, anchor, inner]) => {
    const text = (inner as string).replaceAll(/<[^>]*>/g, '')
    const [width, baseline] = [text.length * 7, Number(y)]
    const left = Number(x) - (anchor === 'end' ? width : anchor === 'middle' ? width / 2 : 0)
    return { text, left, right: left + width, top: baseline - 10, bottom: baseline + 3 }
  })
}

const overlap = (a: Box, b: Box): boolean => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom

test('every line has a mark and a spread per size, its shape is its own, and its name stands at its end', t => {
  const drawn = panels(poolChart(measured()))
  t.is(drawn.length, GROUPS.length + 1)
  for (const [index, panel] of drawn.entries()) {
    const group = GROUPS[index]
    const { calls } = group ?? PROMPTS
    const [names, sizes] = group === undefined ? [calls, 3] : [['random read', ...calls], 4]
    const kinds = names.map((_, at) => (group === undefined ? `call${at}` : at === 0 ? 'read' : `call${at - 1}`))
    t.deepEqual([...panel.matchAll(/class="name">(.*?)</g)].map(match => match[1]), [...names])
    t.is(panel.match(/class="\w+ line"/g)?.length, names.length)
    for (const kind of kinds) {
      const line = new RegExp(`d="M([^"]*)" class="${kind} line"`).exec(panel)?.[1]
      const marks = [...panel.matchAll(new RegExp(`d="M([\\d.]+ [\\d.]+)(m[^"]*)" class="${kind} mark"`, 'g'))]
      t.is(marks.length, sizes, kind)
      t.deepEqual(line?.split('L'), marks.map(match => match[1]), 'the line goes from mark to mark')
      t.is(panel.match(new RegExp(`class="${kind} spread"`, 'g'))?.length, sizes, kind)
    }
    t.is(new Set([...panel.matchAll(/d="M[\d.]+ [\d.]+(m[^"]*)" class="\w+ mark"/g)].map(match => match[1])).size, names.length)
  }
})

test('texts do not overlap, and lie in their panel', t => {
  for (const reads of [[2, 5, 60, 150], [100, 100, 100, 100], [0.3, 1, 1, 9000]]) {
    for (const panel of panels(poolChart(measured(reads)))) {
      const [, width, height] = /<rect width="(\d+)" height="(\d+)"/.exec(panel) ?? []
      const all = boxes(panel)
      t.true(all.length > 10)
      for (const [index, box] of all.entries()) {
        t.true(box.left >= 0 && box.right <= Number(width) && box.top >= 0 && box.bottom <= Number(height), box.text)
        for (const other of all.slice(index + 1)) t.false(overlap(box, other), `${box.text} and ${other.text}`)
      }
    }
  }
})

test('panels do not overlap', t => {
  t.is(apartPanels(t, poolChart(measured())), 4)
})

test('times have one axis of whole decades in all panels, and sizes one place each', t => {
  const drawn = panels(poolChart(measured()))
  for (const panel of drawn.slice(0, 3)) {
    const ticks = boxes(panel).map(({ text }) => text)
    t.deepEqual(ticks.filter(text => /^10* [nµm]s$/.test(text)), ['1 ns', '10 ns', '100 ns', '1 µs', '10 µs'])
    t.deepEqual(ticks.filter(text => /^10*[,0]*$/.test(text)), ['1,000', '10,000', '100,000', '1,000,000'])
  }
  t.is(new Set(drawn.slice(0, 3).map(panel => [...panel.matchAll(/y="([\d.]+)" text-anchor="end"/g)].map(match => match[1]).join(' '))).size, 1)
})

test('the goal is drawn where there is one, at its height', t => {
  const [first, ...others] = panels(poolChart(measured()))
  t.true(first?.includes('goal: under 100 ns'))
  const [, line] = /d="M\d+ ([\d.]+)H\d+" class="goal"/.exec(first ?? '') ?? []
  t.is(Number(line) + 4, Number(/y="([\d.]+)" text-anchor="end" class="small">100 ns</.exec(first ?? '')?.[1]))
  for (const panel of others) t.false(panel.includes('class="goal"'))
})

test('the chart is well-formed, in both themes, whatever the numbers', t => {
  for (const reads of [[2, 5, 60, 150], [100, 100, 100, 100], [150, 60, 5, 2]]) {
    const svg = poolChart(measured(reads))
    wellFormed(t, svg)
    t.true(svg.includes('prefers-color-scheme:dark'))
    t.false(/NaN|undefined|Infinity/.test(svg))
  }
})

test('growth is told in reads, round by round', t => {
  const { calls, read } = callsOf(measured(), PROMPTS)
  const growth = growthOf(calls[0]?.rounds ?? [], read.rounds)
  t.deepEqual(growth.map(({ median }) => Number(median.toFixed(6))), [2, 5, 60, 150].slice(1).map(at => Number((10 * (at - 2) / at).toFixed(6))))
  t.deepEqual(growthOf([[1, 2, 3], [3, 4, 7]], [[1, 1, 1], [2, 2, 2]]), [spreadOf([1, 1, 2])])
})

test('a report without a call, or of other sizes, is refused', t => {
  const whole = measured()
  t.throws(() => poolChart({ ...whole, calls: whole.calls.slice(1) }), { instanceOf: RangeError, message: /no allocate at 4 sizes/ })
  t.throws(() => poolSection({ ...whole, blocks: [1000] }), { instanceOf: RangeError })
})

test('the page has every call once, with its sizes, and says which goal is met', t => {
  const page = poolSection(measured())
  for (const name of NAMES) t.is(page.split(`\n| ${name} |`).length, 2, name)
  t.true(page.includes('| allocate | block | 40 (36.8 to 49.6) | 70 (64.4 to 86.8) | 620 (570 to 769) |'))
  t.true(page.includes('| 38 (38 to 38) | 6.0, 9.7, 9.9 |'))
  t.true(page.includes('**not met**: allocate takes 620 at 100,000 blocks, where one random read takes 60; allocate takes 1,520 at'))
  t.true(page.includes('load before the run: 0.25.'))
  t.true(poolSection({ ...measured(), load: '3.00' }).includes('load before the run: 3.00, so the machine was shared'))
  t.true(page.includes('](pool.svg)'))
  t.true(poolSection(measured([1, 1, 1, 1])).includes('at every size: met.'))
  t.false(/undefined|NaN|\[object|-0\.0/.test(page))
})

test('names are put apart as little as is needed', t => {
  t.deepEqual(apart([10, 50, 90], 16, 0, 100), [10, 50, 90])
  t.deepEqual(apart([50, 52, 10], 16, 0, 100), [50, 66, 10])
  t.deepEqual(apart([95, 96, 97], 16, 0, 100), [68, 84, 100])
  t.deepEqual(apart([-5, 0], 16, 0, 100), [0, 16])
})
