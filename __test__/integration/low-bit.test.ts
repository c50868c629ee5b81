// The errors of low-bit pages, on a smaller run than that of docs/low-bit.md, with the same seeds.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { Llama } from '../support/llama/llama.js'
import { BLOCK_SIZE, exact, forms, pagesFor, type Form } from '../support/low-bit/form.js'
import { errorInHalfSteps, rowsOf, throughPages, WIDTH, type LowBit } from '../support/low-bit/magnitudes.js'
import { agreements, type Agreement } from '../support/low-bit/model.js'
import { outputErrors, type OutputError } from '../support/low-bit/outputs.js'
import { relativeError, SCALES } from '../support/low-bit/scales.js'

/** The bounds of a form. */
interface Bounds {
  /** Bytes of a token in one layer, K and V of one head of 64. */
  readonly bytes: number
  /** The largest mean error of an output: the measured one and a quarter more. An error far below it is a failure too. */
  readonly mean: number
  /** The largest error of an output: one and a half times the measured one. */
  readonly max: number
  /** The least number of 128 tokens that get the largest logit: five fewer than measured, one fewer for the plain dtypes. */
  readonly agreed: number
  /** The largest error of a logit: one and a half times the measured one. */
  readonly logitMax: number
}

const BOUNDS: Readonly<Record<string, Bounds>> = {
  f16: { bytes: 256, mean: 0.000153, max: 0.00213, agreed: 127, logitMax: 0.0298 },
  bf16: { bytes: 256, mean: 0.00112, max: 0.0146, agreed: 125, logitMax: 0.225 },
  f8e4m3: { bytes: 128, mean: 0.0195, max: 0.274, agreed: 102, logitMax: 2.55 },
  'f8e4m3, hadamard': { bytes: 128, mean: 0.019, max: 0.264, agreed: 105, logitMax: 2.8 },
  q8: { bytes: 132, mean: 0.00848, max: 0.109, agreed: 120, logitMax: 0.44 },
  'q8, hadamard': { bytes: 132, mean: 0.00377, max: 0.0632, agreed: 119, logitMax: 0.411 },
  'K q8, V q4': { bytes: 102, mean: 0.0213, max: 0.156, agreed: 96, logitMax: 3.57 },
  'K q8, V q4, hadamard': { bytes: 102, mean: 0.0195, max: 0.161, agreed: 97, logitMax: 3.83 },
  'K q8, V q4, valueHadamard': { bytes: 102, mean: 0.0211, max: 0.233, agreed: 97, logitMax: 2.54 },
  'K q4, V q8': { bytes: 114, mean: 0.0226, max: 0.23, agreed: 98, logitMax: 4.53 },
  'K q4, V q8, hadamard': { bytes: 114, mean: 0.0229, max: 0.328, agreed: 98, logitMax: 5.08 },
  q4: { bytes: 84, mean: 0.0304, max: 0.269, agreed: 90, logitMax: 5.09 },
  'q4, hadamard': { bytes: 84, mean: 0.031, max: 0.294, agreed: 90, logitMax: 5.89 },
  'q4, valueHadamard': { bytes: 84, mean: 0.0305, max: 0.349, agreed: 87, logitMax: 5.59 },
}

const names = forms.map(({ name }) => name)
const outputs = outputErrors([exact, ...forms], { headDim: 64, tokens: 512, seeds: [1, 2] })
const agreed = agreements(new Llama(), [exact, ...forms], ['p7', 'p33'])

const output = (name: string): OutputError => outputs.get(name) as OutputError
const model = (name: string): Agreement => agreed.get(name) as Agreement
const bounds = (name: string): Bounds => BOUNDS[name] as Bounds

/** The measurements of a form that are outside the bounds of the form `of`. */
function outside(measured: string, of: string): string[] {
  const [{ mean, max }, { agreed: first, logitMax }, bound] = [output(measured), model(measured), bounds(of)]
  const wrong = {
    mean: !(mean <= bound.mean && mean >= 0.6 * bound.mean),
    max: !(max <= bound.max),
    agreed: !(first >= bound.agreed),
    logitMax: !(logitMax <= bound.logitMax),
  }
  return Object.entries(wrong).flatMap(([what, is]) => (is ? [what] : []))
}

function bytesOf(form: Form, headDim: number): number {
  using cache = pagesFor(form, BLOCK_SIZE, { numLayers: 1, numKvHeads: 8, headDim })
  return cache.bytesPerToken / 8
}

test('f32 pages say what the reference says', t => {
  t.deepEqual([output('f32').mean, output('f32').max], [0, 0])
  t.deepEqual(model('f32'), { tokens: 128, agreed: 128, logitMax: 0 })
})

for (const form of forms) {
  test(`${form.name}: bytes, error of outputs, and agreement of the model`, t => {
    t.is(bytesOf(form, 64), bounds(form.name).bytes)
    t.deepEqual(outside(form.name, form.name), [], JSON.stringify([output(form.name), model(form.name)]))
  })
}

test('a form that is not what it says is found', t => {
  const byError = ['f16', 'bf16', 'q8, hadamard', 'q8', 'f8e4m3', 'q4']
  for (const name of byError) {
    for (const other of byError.filter(found => found !== name))
      t.not(outside(other, name).length, 0, `${other} passes for ${name}`)
  }
})

test('the advice of the page holds', t => {
  const mean = (name: string): number => output(name).mean
  t.true(mean('q8') < 0.6 * mean('f8e4m3'))
  t.true(mean('q8, hadamard') < 0.6 * mean('q8'))
  for (const name of ['f8e4m3', 'K q4, V q8', 'q4'])
    t.true(Math.abs(mean(`${name}, hadamard`) / mean(name) - 1) < 0.1, name)
  // V has no outliers here.
  for (const name of ['K q8, V q4', 'q4']) t.true(Math.abs(mean(`${name}, valueHadamard`) / mean(name) - 1) < 0.1, name)
  t.true(output('K q8, V q4').max < output('K q4, V q8').max)
  t.true(model('K q8, V q4').logitMax < model('K q4, V q8').logitMax)
})

test('the page has every form in each of its tables, with the bytes of today', t => {
  const page = readFileSync(new URL('../../docs/low-bit.md', import.meta.url), 'utf8')
  for (const form of forms) {
    const rows = page.split('\n').filter(line => line.startsWith(`| ${form.name} | `))
    t.is(rows.length, 4, form.name)
    const [bytes] = rows.map(row => row.split('|').map(cell => cell.trim()))
    t.deepEqual(
      [bytes?.[2], bytes?.[4]],
      [64, 128].map(headDim => String(bytesOf(form, headDim))),
    )
  }
  t.deepEqual(names.toSorted(), Object.keys(BOUNDS).toSorted())
})

/** Errors are at most half a step of the stored scale. The factor says how much coarser stored scales may be than exact ones. */
const COARSER: Readonly<Record<LowBit, number>> = { f8e4m3: 1.0001, q8: 1.005, q4: 1.02 }
const LOW_BIT = ['f8e4m3', 'q8', 'q4'] as const
const DECADES = Array.from({ length: 21 }, (_, at) => 10 ** (3 * at - 30))

/** Rows whose tokens have different magnitudes, from 1e-30 to 1e30; the first one is zero. */
function mixed(): Float32Array {
  return rowsOf(1, 3).map((value, at) => {
    const row = Math.floor(at / WIDTH)
    return row === 0 ? 0 : value * 10 ** (4 * row - 32)
  })
}

/** The sign of an entry of the Hadamard matrix: the parity of the common bits. */
function sign(row: number, column: number): number {
  let odd = false
  for (let both = row & column; both > 0; both &= both - 1) odd = !odd
  return odd ? -1 : 1
}

/** Rows times that matrix, in 64-bit floats. */
function rotated(rows: Float32Array): Float32Array {
  return rows.map((_, at) => {
    const [row, place] = [at - (at % WIDTH), at % WIDTH]
    let sum = 0
    for (let other = 0; other < WIDTH; other++) sum += sign(place, other) * (rows[row + other] as number)
    return sum / Math.sqrt(WIDTH)
  })
}

for (const format of LOW_BIT) {
  test(`${format}: no value of any magnitude is off by more than half a step`, t => {
    const magnitudes = DECADES.filter(magnitude => format !== 'f8e4m3' || magnitude < 100)
    for (const [at, magnitude] of magnitudes.entries()) {
      const rows = rowsOf(magnitude, at)
      const { k, v } = throughPages(format, rows)
      t.true(
        errorInHalfSteps(format, 'k', rows, k) <= COARSER[format],
        `K of ${magnitude}: ${errorInHalfSteps(format, 'k', rows, k)}`,
      )
      t.true(
        errorInHalfSteps(format, 'v', rows, v) <= COARSER[format],
        `V of ${magnitude}: ${errorInHalfSteps(format, 'v', rows, v)}`,
      )
      const through = throughPages(format, rows, true)
      for (const part of ['k', 'v'] as const) {
        const turned = errorInHalfSteps(format, part, rotated(rows), rotated(through[part]))
        t.true(turned <= COARSER[format] * 1.01, `rotated ${part.toUpperCase()} of ${magnitude}: ${turned}`)
      }
    }
  })
}

test('the rotation of V spreads an outlier over its row', t => {
  const rows = rowsOf(1, 11).map((value, at) => (at % WIDTH === 9 ? value + 20 : value))
  const error = ({ v }: { readonly v: Float32Array }): number =>
    v.reduce((sum, value, at) => sum + Math.abs(value - (rows[at] as number)), 0)
  for (const format of ['q8', 'q4'] as const)
    t.true(error(throughPages(format, rows, true)) < 0.5 * error(throughPages(format, rows)), format)
})

test('tokens of every magnitude in one page keep their own, and one that is zero stays so', t => {
  const rows = mixed()
  for (const format of ['q8', 'q4'] as const) {
    const { v } = throughPages(format, rows)
    t.deepEqual(v.subarray(0, WIDTH), new Float32Array(WIDTH))
    const rest = [rows, v].map(all => all.subarray(WIDTH)) as [Float32Array, Float32Array]
    t.true(errorInHalfSteps(format, 'v', ...rest) <= COARSER[format], format)
  }
})

test('f8e4m3 ends at 448, and what is far below its smallest number is zero', t => {
  const { k, v } = throughPages(
    'f8e4m3',
    rowsOf(1, 7).map(value => 1e6 * Math.sign(value)),
  )
  t.true([...k, ...v].every(value => Math.abs(value) === 448))
  t.true(throughPages('f8e4m3', rowsOf(1e-5, 7)).v.every(value => value === 0))
})

test('what is not finite is NaN, and so is what shares its scale, and nothing else', t => {
  const [row, channel] = [5, 9]
  const shared: Readonly<Record<LowBit, Readonly<Record<'k' | 'v', (at: number) => boolean>>>> = {
    f8e4m3: { k: at => at === row * WIDTH + channel, v: at => at === row * WIDTH + channel },
    q8: { k: at => Math.floor(at / WIDTH) === row, v: at => Math.floor(at / WIDTH) === row },
    q4: { k: at => at % WIDTH === channel, v: at => Math.floor(at / WIDTH) === row },
  }
  const good = rowsOf(1, 9)
  for (const bad of [NaN, Infinity, -Infinity]) {
    const rows = good.with(row * WIDTH + channel, bad)
    for (const format of LOW_BIT) {
      const [found, without] = [throughPages(format, rows), throughPages(format, good)]
      for (const part of ['k', 'v'] as const) {
        const expected = without[part].map((value, at) => (shared[format][part](at) ? NaN : value))
        t.deepEqual(found[part], expected, `${part.toUpperCase()} of ${format} with ${bad}`)
      }
      const turned = throughPages(format, rows, true)
      for (const part of ['k', 'v'] as const) {
        const isAlone = !(format === 'q4' && part === 'k')
        t.true(
          turned[part].every((value, at) => !Number.isNaN(value) || !isAlone || Math.floor(at / WIDTH) === row),
          `${part.toUpperCase()} of ${format}, rotated`,
        )
        t.true(turned[part].subarray(row * WIDTH, (row + 1) * WIDTH).every(Number.isNaN), `${format}, rotated`)
      }
    }
  }
})

test('scales cost less than the forms that were compared, or reach further', t => {
  const [exactly, halves, brains, chosen] = SCALES as readonly [
    (typeof SCALES)[0],
    (typeof SCALES)[0],
    (typeof SCALES)[0],
    (typeof SCALES)[0],
  ]
  t.true(chosen.q4.bytes < exactly.q4.bytes && chosen.q8.bytes < exactly.q8.bytes)
  t.true(chosen.q8.bytes === halves.q8.bytes && chosen.q4.bytes === halves.q4.bytes)
  t.true(relativeError('q8', chosen, 128) < 1.01 && relativeError('q4', chosen, 128) < 1.01)
  for (const mean of [10, 100])
    t.true(relativeError('q4', chosen, BLOCK_SIZE, mean) < relativeError('q4', brains, BLOCK_SIZE, mean))
})
