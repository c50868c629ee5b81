// The nodes of layers that keep a state, as kernels of onnxruntime and between two subgraphs: their rows and states are those of the formulas, token by token, however
// tokens are divided into steps.
import type { ExecutionContext } from 'ava'
import unboundTest from 'ava'

import { isKvTideError, type Sequence } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { CASES, NOTHING, type StateCase } from '../support/onnx/state-cases.js'
import { expectedRows, StateCalls, type StateForm, type StateOver, StateSession } from '../support/onnx/state-graph.js'
import { rejected } from '../support/throws.js'

const FORMS: readonly StateForm[] = [
  { element: 'f32', state: 'f32' },
  { element: 'f32', state: 'f16' },
  { element: 'f32', state: 'bf16' },
  { element: 'f16', state: 'f32' },
  { element: 'f16', state: 'f16' },
]

/** The largest difference, relative to 1 and the numbers themselves. */
const BOUNDS: Readonly<Record<string, number>> = { 'f32 f32': 1e-5, 'f16 f32': 2e-3, 'f32 f16': 5e-3, 'f16 f16': 5e-3 }

const tokensOf = (seed: number, length: number): number[] =>
  Array.from({ length }, (_, at) => (at * at * (seed + 2) + at * 7 + seed) % (NOTHING - 1))

function check(
  t: ExecutionContext,
  of: StateCase,
  { element, state }: StateForm,
  found: readonly (readonly number[])[],
  tokens: readonly number[],
  what: string,
): void {
  const bound = BOUNDS[`${element} ${state}`] ?? 5e-2
  const expected = expectedRows(of, tokens).slice(-found.length)
  let off = 0
  for (const [at, row] of found.entries())
    for (const [place, number] of row.entries()) {
      const wanted = expected[at]?.[place] as number
      const difference = Math.abs(number - wanted) / Math.max(1, Math.abs(wanted))
      off = difference <= off ? off : difference
    }
  t.true(off <= bound, `${what} is off by ${off}`)
}

/** Steps of one token and of many, of one sequence and of several, of sequences that share their states from before. */
async function walk(t: ExecutionContext, over: StateOver, form: StateForm): Promise<void> {
  const { of, cache } = over
  const [one, other] = [cache.openSequence(), cache.openSequence()]
  const content = new Map<Sequence, number[]>([
    [one, []],
    [other, []],
  ])
  const step = async (...batch: readonly (readonly [Sequence, readonly number[]])[]): Promise<void> => {
    const rows = await over.step(batch.map(([sequence, tokens]) => ({ sequence, tokens })))
    for (const [at, [sequence, tokens]] of batch.entries()) {
      const all = [...(content.get(sequence) as number[]), ...tokens]
      content.set(sequence, all)
      check(t, of, form, rows[at] as number[][], all, `step ${at} to ${all.length}`)
    }
  }
  await step([one, tokensOf(1, 5)])
  await step([one, [3]], [other, tokensOf(2, 9)])
  const fork = one.fork()
  content.set(fork, content.get(one) as number[])
  await step([fork, tokensOf(3, 2)], [other, [4]], [one, tokensOf(4, 3)])
  // More tokens than are computed in place.
  await step([other, tokensOf(5, 1)], [fork, tokensOf(6, 70)])
  await step([one, tokensOf(7, 40)], [other, tokensOf(8, 31)], [fork, [1]])
  for (const id of tokensOf(9, 4)) await step([fork, [id]], [one, [id]])
  for (const sequence of [one, other, fork]) sequence.dispose()
  cache.checkInvariants()
}

for (const of of CASES) {
  test(`${of.title}, as a kernel`, async t => {
    for (const form of FORMS) {
      using over = await StateSession.open(of, form)
      await walk(t, over, form)
    }
  })

  unboundTest(`${of.title}, between two subgraphs`, async t => {
    for (const form of FORMS) {
      using over = new StateCalls(of, form)
      await walk(t, over, form)
    }
  })

  test(`${of.title}: the same bits alone, beside others, on any number of threads, and between two subgraphs`, async t => {
    const form = { element: 'f32', state: 'f32' } as const
    const parts = [tokensOf(1, 12), tokensOf(2, 1), tokensOf(3, 90), tokensOf(4, 7)]
    const found: unknown[] = []
    for (const threads of [1, 2, 3]) {
      const opened = [await StateSession.open(of, { ...form, threads }), new StateCalls(of, { ...form, threads })]
      for (const over of opened) {
        using made = over
        const sequences = parts.map(() => made.cache.openSequence())
        const rows = await made.step(parts.map((tokens, at) => ({ sequence: sequences[at] as Sequence, tokens })))
        found.push({ rows, states: sequences.map(sequence => sequence.states()) })
        const alone = []
        for (const tokens of parts) {
          using sequence = made.cache.openSequence()
          alone.push({ rows: await made.step([{ sequence, tokens }]), states: sequence.states() })
        }
        found.push({ rows: alone.flatMap(one => one.rows), states: alone.map(one => one.states) })
        for (const sequence of sequences) sequence.dispose()
      }
    }
    for (const other of found.slice(1)) t.deepEqual(other, found[0])
  })

  test(`${of.title}: a state that is not a number is refused, and the sequence goes on without the token`, async t => {
    const form = { element: 'f32', state: 'f32' } as const
    for (const over of [await StateSession.open(of, form), new StateCalls(of, form)]) {
      using made = over
      for (const count of [1, 20, 70]) {
        using sequence = made.cache.openSequence()
        const tokens = tokensOf(1, 5)
        await made.step([{ sequence, tokens }])
        const states = sequence.states()
        const bad = [...tokensOf(2, count - 1), NOTHING]
        const error = await rejected(made.step([{ sequence, tokens: bad }]), 'RUNTIME_FAILED')
        t.regex(error.message, /the state state of layer 0 has a value that is not a number \(NaN\)/)
        t.deepEqual(sequence.states(), states)
        const [rows] = await made.step([{ sequence, tokens: [3, 4] }])
        check(t, of, form, rows as number[][], [...tokens, 3, 4], `after ${count} tokens`)
      }
    }
  })
}

test('a step of a graph that does not compute all states is not committed', async t => {
  const [of] = CASES as [StateCase]
  using over = await StateSession.open(of, { element: 'f32', state: 'f32' }, { extra: ['zest'] })
  using sequence = over.cache.openSequence()
  const error = await rejected(over.step([{ sequence, tokens: [1, 2] }]), 'STEP_INCOMPLETE')
  t.true(isKvTideError(error))
  t.is(sequence.length, 0)
})

test('what a node lacks is named when a session is made, or when it is computed', async t => {
  const form = { element: 'f32', state: 'f32' } as const
  const [convolution] = CASES as [StateCase]
  const { kernel, ...rest } = convolution.attributes
  t.is(kernel, 4)
  const lacking = await rejected(StateSession.open({ ...convolution, attributes: rest }, form), 'RUNTIME_FAILED')
  t.regex(lacking.message, /kvtide::ShortConv: kernel is missing, expected a whole number of at least 0/)
  using other = await StateSession.open(convolution, form, { attributes: { state: 3 } })
  using sequence = other.cache.openSequence()
  const wrong = await rejected(other.step([{ sequence, tokens: [1] }]), 'INVALID_ARGUMENT')
  t.regex(wrong.message, /state is 3, expected below 1/)
  using wide = await StateSession.open(convolution, form, { attributes: { columns: 9 } })
  using third = wide.cache.openSequence()
  const size = await rejected(wide.step([{ sequence: third, tokens: [1] }]), 'SHAPE_MISMATCH')
  t.regex(size.message, /target/)
  t.throws(() => binding.NativeStateNode.of('Conv', [], 'f32', 1), { code: 'INVALID_ARGUMENT', message: /ShortConv/ })
  t.throws(() => binding.NativeStateNode.of('ShortConv', [], 'f32', 1), { message: /channels is missing/ })
  const sizes = [
    { name: 'heads', values: [2] },
    { name: 'head_dim', values: [4] },
    { name: 'groups', values: [1] },
    { name: 'limits', values: [1] },
  ]
  t.throws(() => binding.NativeStateNode.of('StateSpace', sizes, 'f32', 1), {
    message: /limits has 1 numbers, expected 2/,
  })
  t.throws(() => new StateCalls(convolution, { ...form, element: 'bf16' as 'f16' }), { message: /f32 or f16/ })
  using calls = new StateCalls({ ...convolution, inputs: convolution.inputs.slice(0, 1) }, form)
  using fourth = calls.cache.openSequence()
  const missing = await rejected(calls.step([{ sequence: fourth, tokens: [1] }]), 'INVALID_ARGUMENT')
  t.regex(missing.message, /weight is missing/)
})
