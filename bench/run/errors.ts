// `npm run errors`: measures what each form of pages takes and how far off it is, and writes docs/low-bit.md.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Llama } from '../../__test__/support/llama/llama.js'
import { references } from '../../__test__/support/llama/references.js'
import { BLOCK_SIZE, exact, forms, pagesFor, type Form } from '../../__test__/support/low-bit/form.js'
import { errorInHalfSteps, rowsOf, throughPages, type LowBit } from '../../__test__/support/low-bit/magnitudes.js'
import { agreements, logitScale } from '../../__test__/support/low-bit/model.js'
import { DRAWN, outputErrors, OUTLIERS } from '../../__test__/support/low-bit/outputs.js'
import { relativeError, SCALES } from '../../__test__/support/low-bit/scales.js'
import { digits, tableOf } from '../report/table.js'
import { root } from './suites.js'

const HEAD_DIMS = [64, 128] as const
const LENGTHS = [128, 1024, 4096] as const
const SEEDS = [1, 2, 3, 4] as const

const all: readonly Form[] = [exact, ...forms]

const MAGNITUDES = [1e-37, 1e-30, 1e-20, 1e-6, 1e-4, 1e-2, 1, 1e2, 1e5, 1e7, 1e20, 1e30, 1e37] as const

/** Heads of the cache whose bytes are told. */
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
  return tableOf(head, all.map(form => [form.name, ...cells(form)]))
}

function outputTable(headDim: number): string {
  const columns = LENGTHS.map(tokens => outputErrors(forms, { headDim, tokens, seeds: SEEDS }))
  const size = (column: (typeof columns)[number]): string => digits([...column.values()][0]?.size ?? 0)
  const head = ['', ...LENGTHS.map((tokens, at) => `${tokens} tokens (size ${size(columns[at] as (typeof columns)[number])})`)]
  const rows = forms.map(({ name }) => [
    name,
    ...columns.map(column => {
      const { mean, max } = column.get(name) ?? { mean: NaN, max: NaN }
      return `${digits(mean)}, ${digits(max)}`
    }),
  ])
  return tableOf(head, rows)
}

/** The largest error in half steps, at each magnitude. */
function magnitudeTable(): string {
  const columns: readonly (readonly [LowBit, 'k' | 'v'])[] = [['f8e4m3', 'v'], ['q8', 'v'], ['q4', 'v'], ['q4', 'k']]
  const cell = (magnitude: number, [format, part]: (typeof columns)[number]): string => {
    const rows = rowsOf(magnitude, 5)
    const error = errorInHalfSteps(format, part, rows, throughPages(format, rows)[part])
    return format === 'f8e4m3' && magnitude > 448 ? 'ends at 448' : error.toFixed(2)
  }
  const head = ['deviation', ...columns.map(([format, part]) => (format === 'q4' ? `${format} ${part.toUpperCase()}` : format))]
  return tableOf(head, MAGNITUDES.map(magnitude => [magnitude.toExponential(0), ...columns.map(column => cell(magnitude, column))]))
}

/** What scales of other bits would cost. */
function scaleTable(): string {
  const [dim, means] = [128, [0, 10, 100]]
  const rows = SCALES.map(scales => {
    const { q8, q4 } = scales
    const bytes = [2 * (dim + q8.bytes), dim / 2 + (dim * q4.bytes) / BLOCK_SIZE + dim / 2 + q4.bytes]
    const errors = [relativeError('q8', scales, dim), relativeError('q4', scales, dim), ...means.map(mean => relativeError('q4', scales, BLOCK_SIZE, mean))]
    return [scales.name, q8.range, ...bytes.map(String), ...errors.map(error => error.toFixed(3))]
  })
  const head = ['scales', 'rows of q8', 'bytes, q8', 'bytes, q4', 'q8', 'q4 V', ...means.map(mean => `q4 K, mean ${mean}`)]
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

/** For which numbers the guarantee holds, and what that takes. */
function rangeSections(): readonly string[] {
  return [
    '## Which numbers',
    `Each value is off by at most half a step of its scale, at every magnitude that a float has; by 2^-127 (6e-39) where that is more:`,
    `- \`q8\`: a step is the largest magnitude of the row (one token, one head) / 127, rounded to 8 bits.
- \`q4\`: a step is the distance of the smallest and the largest value / 15, rounded to 7 bits: in a row of V, in a channel of K over the tokens of a
block. The minimum has 10 bits. Beyond 2^126 (8.5e37) values count as 2^126.
- \`f8e4m3\` has no scale: a step is the distance of a number's neighbours, an eighth to a sixteenth of it, and 2^-9 below 2^-6. **It ends at
448**: what is beyond it becomes 448, and what is below 2^-10, about 0.001, becomes 0.
- Infinities and NaN: in \`f8e4m3\` the element is NaN. In \`q8\` and \`q4\` they have no codes: **the whole row (of K in \`q4\` the channel in that block) becomes
NaN**, and nothing else does. With \`hadamard\`, so does all of K that is rotated together with them: as many elements of the row as the largest power of two
that divides the head dimension, and what shares a scale with those. To mark NaN by element would cost attention a comparison for each code.
- \`hadamard\` adds up the elements of a row: they must stay below the largest float divided by how many are rotated together (2.7e36 for 128).
- Attention on a GPU with queries of \`f16\` widens codes to \`f16\`, which ends at 65504.`,
    `The largest error of any value, in half steps of a scale that is not rounded, of normal numbers of some deviation (16 tokens, head dimension 64).
At 1e-37, 2^-127 is more than half a step of \`q8\`.`,
    magnitudeTable(),
    `Scales have the exponents of 32-bit floats in two bytes, and in \`q4\` one word has scale and minimum. What other scales take and cost, in bytes of a token
and head (head dimension 128, blocks of ${BLOCK_SIZE}), and in the mean error of a value over that with scales of f32: normal numbers of deviation 1, in channels of K
round a mean that is not 0 as well.`,
    scaleTable(),
    `Against scales and minimums of f16 each, on a machine with AVX-512, quantising took 0.91 of the time in \`q8\` and 0.89 in \`q4\`, attention of one query 0.99 and
0.93, reading 0.98 and 0.87 (\`cargo bench -p kvtide-tensor low_bit\`, both builds in turns, medians of 15 rounds).`,
  ]
}

function page(version: string): string {
  const model = new Llama()
  const { num_hidden_layers: layers, hidden_size: width, head_dim: dim } = model.config
  const prompts = Object.keys(references.prompts)
  const { gap, largest } = logitScale(model, prompts)
  const { queryHeads, kvHeads, queries, queryDeviation } = DRAWN
  return `${[
    '# What low-bit pages cost, and how far off they are',
    `Written by \`npm run errors\`, kvtide ${version}. Do not edit by hand. Seeds are fixed: on another machine, the last digits alone may
differ. Blocks have ${BLOCK_SIZE} tokens. \`f16\` and \`bf16\` are the cache's \`dtype\`, the others \`keyFormat\` and \`valueFormat\`; \`hadamard\` rotates K.`,
    '## Which to take',
    `- \`q8\` is nearer than \`f8e4m3\`, for two more bytes a row. \`hadamard\` halves its error where channels of K stand out.
- \`hadamard\` does little for the mean error of \`f8e4m3\`, whose error goes with each element alone, and of \`q4\` K, whose channels have scales of their own.
- Four bits cost less in V than in K: in bytes, in the largest error, and in the model. The mean error is about the same.`,
    '## Bytes of a token',
    `In one layer, K and V of one head, the share of scales included (\`bytesPerToken\` of a cache with ${HEADS} heads).`,
    bytesTable(),
    ...rangeSections(),
    '## Attention',
    `How far the output of \`attend\` is from that over f32 pages: the mean and the largest absolute difference. \`size\` is the root of
the mean square of the output over f32 pages.`,
    `K, V and queries are normally distributed, with deviations 1, 1 and ${queryDeviation}, so that the scores of a query have one of about ${queryDeviation}. One
channel of K in ${OUTLIERS.oneIn}, another one in each head, stands out as in real keys: its mean is ${OUTLIERS.mean} or -${OUTLIERS.mean}, its deviation ${OUTLIERS.deviation}. The last ${queries} tokens
are the queries, with ${queryHeads} heads over ${kvHeads} of K and V; ${SEEDS.length} draws. All pages are full, and so quantised.`,
    ...HEAD_DIMS.flatMap(headDim => [`### Head dimension ${headDim}`, outputTable(headDim)]),
    '## A model',
    `The Llama that the tests use, led along the greedy continuations that HF transformers gives for ${prompts.length} prompts of 1 to 100 tokens: how
often the token that comes next there is the one with the largest logit, and how far any logit is from that over f32 pages.
As in any use, the newest tokens, up to ${BLOCK_SIZE - 1}, lie in floats.`,
    `**This model is tiny and random**: ${layers} layers, ${width} wide, head dimension ${dim}, weights that nobody trained. Its best two logits are often
nearly the same (half of the time nearer than ${digits(gap)}, where the largest logit is ${digits(largest)}), so that a small error changes which one is first.
Its agreement is a floor and not a promise: measure your own model.`,
    modelTable(model, prompts),
  ].join('\n\n')}\n`
}

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
mkdirSync(join(root, 'docs'), { recursive: true })
writeFileSync(join(root, 'docs', 'low-bit.md'), page(version))
console.log('written: docs/low-bit.md')
