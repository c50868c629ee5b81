// The chart of the README.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { readmeChart } from '../report/readme.js'
import type { Recorded } from '../report/recorded.js'

const read = (file: string): string => readFileSync(new URL(`../../bench/${file}`, import.meta.url), 'utf8')
const recorded = JSON.parse(read('recorded.json')) as Recorded
const svg = read('readme.svg')

/** The narrowest phones there are, and the smallest letters that are read there with ease. */
const [PHONE, LETTERS_MIN] = [360, 13]

test('it shows what was recorded last, in eight rows at most', t => {
  t.is(svg, readmeChart(recorded))
  const rows = [...svg.matchAll(/class="number"/g)].length
  t.true(rows > 0 && rows <= 8, `${rows} rows`)
  const { 'attention-f16/ggml-over-ours': taken, ...rest } = recorded.ratios
  t.truthy(taken)
  t.throws(() => readmeChart({ ratios: rest }), { message: /there is no recorded ratio attention-f16/ })
})

test('others are those that would be taken: none of its rows is kvtide against itself', t => {
  const others = [...svg.matchAll(/<text class="quiet"[^>]*>([^<]*)</g)].map(([, other = '']) => other)
  for (const other of others) t.regex(other, /onnxruntime|PyTorch|ggml|llama/)
  for (const name of ['onnxruntime-node, the whole prompt again', 'PyTorch', 'ggml', 'onnxruntime GroupQueryAttention'])
    t.true(
      others.some(other => other.startsWith(name)),
      name,
    )
})

test('it has a ground of its own behind everything, in both themes', t => {
  const [, width, height] = /viewBox="0 0 (\d+) (\d+)"/.exec(svg) ?? []
  t.is(/<\/style>(<[^>]*>)/.exec(svg)?.[1], `<rect class="ground" width="${width}" height="${height}" rx="6"/>`)
  const [light = '', dark = ''] = svg.split('@media(prefers-color-scheme:dark)')
  t.true(light.includes('.ground{fill:#fff}'))
  t.true(dark.includes('.ground{fill:#0d1117}'))
})

test('letters can be read on a phone, and none of them is cut off', t => {
  const width = Number(/viewBox="0 0 (\d+) /.exec(svg)?.[1])
  const sizes = [...svg.matchAll(/(?:font:|font-size:)(\d+)px/g)].map(([, size]) => Number(size))
  t.true(sizes.length > 1)
  for (const size of sizes) t.true((size * PHONE) / width >= LETTERS_MIN, `${size} of ${width}`)
  // A letter of the wider fonts takes less than two thirds of its height.
  for (const [, x, words = ''] of svg.matchAll(/<text[^>]* x="([\d.]+)"[^>]*>(.*?)<\/text>/g)) {
    const letters = words.replaceAll(/<[^>]*>/g, '').length
    t.true(Number(x) + letters * 16 * 0.6 <= width, words)
  }
})
