// The chart of the README.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { readmeChart } from '../../bench/report/readme.js'
import type { Recorded } from '../../bench/report/recorded.js'

const read = (file: string): string => readFileSync(new URL(`../../bench/${file}`, import.meta.url), 'utf8')
const recorded = JSON.parse(read('recorded.json')) as Recorded

test('it shows what was recorded last, in eight rows', t => {
  t.is(read('readme.svg'), readmeChart(recorded))
  t.is([...read('readme.svg').matchAll(/class="number"/g)].length, 8)
  const { 'attention-f16/ggml-over-ours': taken, ...rest } = recorded.ratios
  t.truthy(taken)
  t.throws(() => readmeChart({ ratios: rest }), { message: /there is no recorded ratio attention-f16/ })
})
