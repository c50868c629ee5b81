// The charts of results.
import test, { type ExecutionContext } from 'ava'

import { axisOf, chart, time, type Panel } from '../report/chart.js'
import { workload } from './reports.js'

const panel = (title: string): Panel => ({ title, subtitle: 'per token', lanes: workload('first', []).lanes })

function wellFormed(t: ExecutionContext, svg: string): void {
  const open: string[] = []
  for (const [, close, name = '', empty] of svg.matchAll(/<(\/?)([a-z]+)[^>]*?(\/?)>/g)) {
    if (close === '/') t.is(open.pop(), name)
    else if (empty !== '/') open.push(name)
  }
  t.deepEqual(open, [])
}

test('an axis goes over whole decades', t => {
  const axis = axisOf([850, 4_200_000])
  t.deepEqual(axis.decades, [1e2, 1e3, 1e4, 1e5, 1e6, 1e7])
  t.deepEqual([axis.place(1e2), axis.place(1e7)], [0, 1])
  t.true(Math.abs(axis.place(1e3) - 0.2) < 1e-9)
})

test('an axis of one value has room', t => {
  t.deepEqual(axisOf([1000]).decades, [1000, 10_000])
  t.deepEqual(axisOf([20, 30]).decades, [10, 100])
})

test('a time is told in the largest unit of which there is one', t => {
  t.deepEqual([0.5, 1, 999, 1500, 2e6, 3e9].map(time), ['0.5 ns', '1 ns', '999 ns', '1.5 µs', '2 ms', '3 s'])
})

test('the chart has a panel per workload and a mark per lane, in both themes', t => {
  const svg = chart('what', ['first', 'second', 'third'].map(panel))
  t.is(svg.match(/<g /g)?.length, 3)
  for (const [name, count] of [
    ['kvtide', 4],
    ['by hand', 4],
    ['bare rows', 3],
  ] as const) {
    t.is(svg.match(new RegExp(`>${name}<`, 'g'))?.length, count, name)
  }
  t.is(svg.match(/class="ours spread"/g)?.length, 3)
  t.true(svg.includes('prefers-color-scheme:dark'))
  t.false(/NaN|undefined|Infinity/.test(svg))
})

test('the legend names what the panels have', t => {
  const svg = chart('what', [{ ...panel('first'), lanes: panel('').lanes.filter(({ role }) => role === 'ours') }])
  t.true(svg.includes('>kvtide<'))
  t.false(svg.includes('by hand'))
})

test('the chart is well-formed, whatever the names are', t => {
  const svg = chart('what', [panel('a < b && "c"')])
  t.true(svg.includes('a &lt; b &amp;&amp; "c"'))
  wellFormed(t, svg)
})

test('panels do not overlap', t => {
  const svg = chart('what', ['a', 'b', 'c', 'd', 'e'].map(panel))
  const places = [...svg.matchAll(/translate\((\d+) (\d+)\)"><rect width="(\d+)" height="(\d+)"/g)].map(
    match => match.slice(1).map(Number) as [number, number, number, number],
  )
  t.is(places.length, 5)
  for (const [index, [x, y, width, height]] of places.entries()) {
    for (const [otherX, otherY, otherWidth, otherHeight] of places.slice(index + 1))
      t.true(x + width <= otherX || otherX + otherWidth <= x || y + height <= otherY || otherY + otherHeight <= y)
  }
})
