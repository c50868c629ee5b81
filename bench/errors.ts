// `npm run errors`: measures what each form of pages takes and how far off it is, and writes docs/low-bit.md.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Llama } from '../__test__/support/llama/llama.js'
import { references } from '../__test__/support/llama/references.js'
import { BLOCK_SIZE, exact, forms, pagesFor, type Form } from '../__test__/support/low-bit/form.js'
import { agreements, logitScale } from '../__test__/support/low-bit/model.js'
import { DRAWN, outputErrors, OUTLIERS } from '../__test__/support/low-bit/outputs.js'
import { digits, tableOf } from './table.js'
import { root } from './suites.js'

const HEAD_DIMS = [64, 128] as const
const LENGTHS = [128, 1024, 4096] as const
const SEEDS = [1, 2, 3, 4] as const

const all: readonly Form[] = [exact, ...forms]

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

function modelTable(model: Llama, prompts: readonly string[]): string {
  const rows = [...agreements(model, all, prompts)].map(([name, { tokens, agreed, logitMax }]) => [
    name,
    `${agreed} of ${tokens}`,
    `${((100 * agreed) / tokens).toFixed(1)} %`,
    digits(logitMax),
  ])
  return tableOf(['', 'tokens put first', 'top-1 agreement', 'largest logit error'], rows)
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
