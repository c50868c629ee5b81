// Options of sampling: what is read, and what is refused by name.
import test from 'ava'

import type { AnyKvTideError } from '../../index.js'
import { readSamplingOptions } from '../../lib/sampling/options.js'
import { throwsCode } from '../support/throws.js'

const read = (options: unknown) => readSamplingOptions('options', options)

test('without options the most probable token is taken, and nothing else is done', t => {
  const { numbers, ids, bias, allowed } = read({})
  t.deepEqual([...numbers.subarray(0, 7)], [0, 0, 1, 0, 1, 0, 0])
  t.true(Number.isSafeInteger(numbers[7]) && (numbers[7] as number) >= 0)
  t.is(numbers[8], -1)
  t.deepEqual([ids.length, bias.length, allowed], [0, 0, undefined])
  t.not(read({}).numbers[7], numbers[7], 'a seed of its own')
})

test('a draw is made if it is asked for', t => {
  for (const options of [{ topK: 5 }, { topP: 0.5 }, { minP: 0.5 }, { seed: 3 }])
    t.is(read(options).numbers[0], 1, JSON.stringify(options))
  t.is(read({ topP: 0.5, temperature: 0 }).numbers[0], 0)
  t.is(read({ repetitionPenalty: 1.1, logprobs: 3 }).numbers[0], 0)
})

test('every option has its place', t => {
  const { numbers, ids, bias } = read({
    temperature: 0.5,
    topK: 7,
    topP: 0.25,
    minP: 0.125,
    repetitionPenalty: 2,
    presencePenalty: -1,
    frequencyPenalty: 3,
    seed: 11,
    logprobs: 5,
    bias: { 4: 1.5, 2: -Infinity },
  })
  t.deepEqual([...numbers], [0.5, 7, 0.25, 0.125, 2, -1, 3, 11, 5])
  t.deepEqual(
    [[...ids], [...bias]],
    [
      [2, 4],
      [-Infinity, 1.5],
    ],
  )
  const same = read({
    bias: new Map([
      [9, 1],
      [3, 2],
    ]),
  })
  t.deepEqual(
    [[...same.ids], [...same.bias]],
    [
      [9, 3],
      [1, 2],
    ],
  )
})

test('values that an option cannot have are refused by its name', t => {
  const refused = (options: unknown): unknown =>
    (throwsCode(t, 'INVALID_ARGUMENT', () => read(options)) as AnyKvTideError & { details: { argument: string } })
      .details.argument
  for (const wrong of [NaN, Infinity, -1, '1', null, 1e39]) {
    for (const name of ['temperature', 'topK', 'topP', 'minP', 'repetitionPenalty', 'seed', 'logprobs']) {
      t.is(refused({ [name]: wrong }), name, `${name}: ${String(wrong)}`)
    }
  }
  for (const wrong of [NaN, Infinity, '1', null]) {
    for (const name of ['presencePenalty', 'frequencyPenalty']) t.is(refused({ [name]: wrong }), name)
  }
  for (const [name, wrong] of [
    ['topK', 0],
    ['topP', 0],
    ['topP', 1.1],
    ['minP', 1.1],
    ['repetitionPenalty', 0],
    ['logprobs', 1001],
    ['seed', 0.5],
    ['topP', 1e-60],
  ] as const) {
    t.is(refused({ [name]: wrong }), name, `${name}: ${wrong}`)
  }
  for (const bias of [
    1,
    'x',
    [1],
    new Float32Array(2),
    null,
    { x: 1 },
    { '01': 1 },
    { '-1': 1 },
    new Map([[0.5, 1]]),
    new Map([['1', 1]]),
  ])
    t.is(refused({ bias }), 'bias')
  t.is(refused({ bias: { 7: NaN } }), 'bias[7]')
  t.is(refused({ bias: { 7: Infinity } }), 'bias[7]')
  t.is(refused({ allowed: [1] }), 'allowed')
  t.is(refused({ topk: 1 }), 'options.topk')
  t.is(refused(null), 'options')
})
