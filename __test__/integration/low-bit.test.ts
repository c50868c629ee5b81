// How far off low-bit pages are, on a smaller run than that of docs/low-bit.md, with the same seeds.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { Llama } from '../support/llama/llama.js'
import { BLOCK_SIZE, exact, forms, pagesFor, type Form } from '../support/low-bit/form.js'
import { agreements, type Agreement } from '../support/low-bit/model.js'
import { outputErrors, type OutputError } from '../support/low-bit/outputs.js'

/** What a form is held to. */
interface Bounds {
  /** Bytes of a token in one layer, K and V of one head of 64. */
  readonly bytes: number
  /** The largest mean error of an output, a quarter over what was measured. Much less is not this form either. */
  readonly mean: number
  /** The largest error of an output, half as much again as was measured. */
  readonly max: number
  /** Of 128 tokens, how many the model puts first at least: five fewer than were measured, one for the dtypes. */
  readonly agreed: number
  /** The largest error of a logit, half as much again as was measured. */
  readonly logitMax: number
}

const BOUNDS: Readonly<Record<string, Bounds>> = {
  'f16': { bytes: 256, mean: 0.000153, max: 0.00213, agreed: 127, logitMax: 0.0298 },
  'bf16': { bytes: 256, mean: 0.00112, max: 0.0146, agreed: 125, logitMax: 0.225 },
  'f8e4m3': { bytes: 128, mean: 0.0195, max: 0.274, agreed: 102, logitMax: 2.55 },
  'f8e4m3, hadamard': { bytes: 128, mean: 0.019, max: 0.264, agreed: 105, logitMax: 2.8 },
  'q8': { bytes: 132, mean: 0.00848, max: 0.109, agreed: 120, logitMax: 0.44 },
  'q8, hadamard': { bytes: 132, mean: 0.00377, max: 0.0632, agreed: 119, logitMax: 0.411 },
  'K q8, V q4': { bytes: 102, mean: 0.0213, max: 0.156, agreed: 96, logitMax: 3.57 },
  'K q8, V q4, hadamard': { bytes: 102, mean: 0.0195, max: 0.161, agreed: 97, logitMax: 3.83 },
  'K q4, V q8': { bytes: 114, mean: 0.0226, max: 0.23, agreed: 98, logitMax: 4.53 },
  'K q4, V q8, hadamard': { bytes: 114, mean: 0.0229, max: 0.328, agreed: 98, logitMax: 5.08 },
  'q4': { bytes: 84, mean: 0.0304, max: 0.269, agreed: 90, logitMax: 5.09 },
  'q4, hadamard': { bytes: 84, mean: 0.031, max: 0.294, agreed: 90, logitMax: 5.89 },
}

const names = forms.map(({ name }) => name)
const outputs = outputErrors([exact, ...forms], { headDim: 64, tokens: 512, seeds: [1, 2] })
const agreed = agreements(new Llama(), [exact, ...forms], ['p7', 'p33'])

const output = (name: string): OutputError => outputs.get(name) as OutputError
const model = (name: string): Agreement => agreed.get(name) as Agreement
const bounds = (name: string): Bounds => BOUNDS[name] as Bounds

/** What of a form is not within the bounds of this name. */
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
    for (const other of byError.filter(found => found !== name)) t.not(outside(other, name).length, 0, `${other} passes for ${name}`)
  }
})

test('the advice of the page holds', t => {
  const mean = (name: string): number => output(name).mean
  t.true(mean('q8') < 0.6 * mean('f8e4m3'))
  t.true(mean('q8, hadamard') < 0.6 * mean('q8'))
  for (const name of ['f8e4m3', 'K q4, V q8', 'q4']) t.true(Math.abs(mean(`${name}, hadamard`) / mean(name) - 1) < 0.1, name)
  t.true(output('K q8, V q4').max < output('K q4, V q8').max)
  t.true(model('K q8, V q4').logitMax < model('K q4, V q8').logitMax)
})

test('the page has every form in each of its tables, with the bytes of today', t => {
  const page = readFileSync(new URL('../../docs/low-bit.md', import.meta.url), 'utf8')
  for (const form of forms) {
    const rows = page.split('\n').filter(line => line.startsWith(`| ${form.name} | `))
    t.is(rows.length, 4, form.name)
    const [bytes] = rows.map(row => row.split('|').map(cell => cell.trim()))
    t.deepEqual([bytes?.[2], bytes?.[4]], [64, 128].map(headDim => String(bytesOf(form, headDim))))
  }
  t.deepEqual(names.toSorted(), Object.keys(BOUNDS).toSorted())
})
