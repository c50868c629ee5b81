// `npm run errors`: measures the size and the error of each form of pages, and writes docs/low-bit.md from the template
// page.md, with a number or a table in place of each name.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Llama } from '../../__test__/support/llama/llama.js'
import { references } from '../../__test__/support/llama/references.js'
import { BLOCK_SIZE, exact, forms, pagesFor, type Form } from '../../__test__/support/low-bit/form.js'
import { errorInHalfSteps, rowsOf, throughPages, type LowBit } from '../../__test__/support/low-bit/magnitudes.js'
import { agreements, logitScale } from '../../__test__/support/low-bit/model.js'
import { DRAWN, outputErrors, OUTLIERS } from '../../__test__/support/low-bit/outputs.js'
import { relativeError, SCALES } from '../../__test__/support/low-bit/scales.js'
import { digits, tableOf } from '../../bench/report/table.js'
import { root } from '../steps.mjs'

const HEAD_DIMS = [64, 128] as const
const LENGTHS = [128, 1024, 4096] as const
const SEEDS = [1, 2, 3, 4] as const

const all: readonly Form[] = [exact, ...forms]

const MAGNITUDES = [1e-37, 1e-30, 1e-20, 1e-6, 1e-4, 1e-2, 1, 1e2, 1e5, 1e7, 1e20, 1e30, 1e37] as const

/** The number of heads of the cache whose bytes are shown. */
const HEADS = 8

/** Bytes of a token in one layer, K and V of one head. */
function bytesOf(form: Form, headDim: number): number {
  using cache = pagesFor(form, BLOCK_SIZE, { numLayers: 1, numKvHeads: HEADS, headDim })
  return cache.bytesPerToken / HEADS
}

function bytesTable(): string {
  const cells = (form: Form): string[] =>
    HEAD_DIMS.flatMap(headDim => {
      const bytes = bytesOf(form, headDim)
      return [String(bytes), `${((100 * bytes) / bytesOf(exact, headDim)).toFixed(1)} %`]
    })
  const head = ['', ...HEAD_DIMS.flatMap(headDim => [`bytes, head dim ${headDim}`, 'of f32'])]
  return tableOf(
    head,
    all.map(form => [form.name, ...cells(form)]),
  )
}

function outputTable(headDim: number): string {
  const columns = LENGTHS.map(tokens => outputErrors(forms, { headDim, tokens, seeds: SEEDS }))
  const size = (column: (typeof columns)[number]): string => digits([...column.values()][0]?.size ?? 0)
  const head = [
    '',
    ...LENGTHS.map((tokens, at) => `${tokens} tokens (size ${size(columns[at] as (typeof columns)[number])})`),
  ]
  const rows = forms.map(({ name }) => [
    name,
    ...columns.map(column => {
      const { mean, max } = column.get(name) ?? { mean: NaN, max: NaN }
      return `${digits(mean)}, ${digits(max)}`
    }),
  ])
  return tableOf(head, rows)
}

function magnitudeTable(): string {
  const columns: readonly (readonly [LowBit, 'k' | 'v'])[] = [
    ['f8e4m3', 'v'],
    ['q8', 'v'],
    ['q4', 'v'],
    ['q4', 'k'],
  ]
  const cell = (magnitude: number, [format, part]: (typeof columns)[number]): string => {
    const rows = rowsOf(magnitude, 5)
    const error = errorInHalfSteps(format, part, rows, throughPages(format, rows)[part])
    return format === 'f8e4m3' && magnitude > 448 ? 'out of range' : error.toFixed(2)
  }
  const head = [
    'deviation',
    ...columns.map(([format, part]) => (format === 'q4' ? `${format} ${part.toUpperCase()}` : format)),
  ]
  return tableOf(
    head,
    MAGNITUDES.map(magnitude => [magnitude.toExponential(0), ...columns.map(column => cell(magnitude, column))]),
  )
}

function scaleTable(): string {
  const [dim, means] = [128, [0, 10, 100]]
  const rows = SCALES.map(scales => {
    const { q8, q4 } = scales
    const bytes = [2 * (dim + q8.bytes), dim / 2 + (dim * q4.bytes) / BLOCK_SIZE + dim / 2 + q4.bytes]
    const errors = [
      relativeError('q8', scales, dim),
      relativeError('q4', scales, dim),
      ...means.map(mean => relativeError('q4', scales, BLOCK_SIZE, mean)),
    ]
    return [scales.name, q8.range, ...bytes.map(String), ...errors.map(error => error.toFixed(3))]
  })
  const head = [
    'scales',
    'rows of q8',
    'bytes, q8',
    'bytes, q4',
    'q8',
    'q4 V',
    ...means.map(mean => `q4 K, mean ${mean}`),
  ]
  return tableOf(head, rows)
}

function modelTable(model: Llama, prompts: readonly string[]): string {
  const rows = [...agreements(model, all, prompts)].map(([name, { tokens, agreed, logitMax }]) => [
    name,
    `${agreed} of ${tokens}`,
    `${((100 * agreed) / tokens).toFixed(1)} %`,
    digits(logitMax),
  ])
  return tableOf(['', 'tokens put first', 'top-1 agreement', 'largest logit error'], rows)
}

function found(version: string): Readonly<Record<string, string | number>> {
  const model = new Llama()
  const { num_hidden_layers: layers, hidden_size: width, head_dim: dim } = model.config
  const prompts = Object.keys(references.prompts)
  const { gap, largest } = logitScale(model, prompts)
  const tables = {
    bytes: bytesTable(),
    magnitudes: magnitudeTable(),
    scales: scaleTable(),
    outputs64: outputTable(64),
    outputs128: outputTable(128),
    model: modelTable(model, prompts),
  }
  const sizes = {
    version,
    heads: HEADS,
    block: BLOCK_SIZE,
    open: BLOCK_SIZE - 1,
    draws: SEEDS.length,
    prompts: prompts.length,
    layers,
    width,
    dim,
    gap: digits(gap),
    largest: digits(largest),
  }
  return { ...DRAWN, ...OUTLIERS, ...sizes, ...tables }
}

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
const named = found(version)
const page = readFileSync(new URL('page.md', import.meta.url), 'utf8').replaceAll(
  /\{\{(\w+)\}\}/g,
  (_, name: string) => {
    if (named[name] === undefined) throw new RangeError(`page.md uses {{${name}}}, which is not measured`)
    return String(named[name])
  },
)
writeFileSync(join(root, 'docs', 'low-bit.md'), page)
console.log('written: docs/low-bit.md')
