import test from 'ava'

import { setThreads, threads } from '../../index.js'
import { runProcess } from '../support/packaging/child.js'
import { throwsCode } from '../support/throws.js'

test('the number of threads is what was said last', t => {
  const before = threads()
  t.true(before >= 1)
  for (const wanted of [1, 3, before]) {
    setThreads(wanted)
    t.is(threads(), wanted)
  }
  for (const wrong of [0, -1, 1.5, NaN, 1025, 2 ** 32, '2']) {
    throwsCode(t, 'INVALID_ARGUMENT', () => setThreads(wrong as number), {
      argument: 'n',
      value: wrong,
      expected: 'a whole number from 1 to 1024',
    })
  }
  t.is(threads(), before)
})

/** Runs a process with these variables, and returns its lines about threads and about a call. */
async function answers(variables: Readonly<Record<string, string>>): Promise<string> {
  const set = Object.entries(variables).map(([name, value]) => `process.env.${name} = ${JSON.stringify(value)}`)
  const { out, err } = await runProcess(`
    ${set.join('\n')}
    const one = { data: new Float32Array(1), shape: [1, 1, 1, 1] }
    for (const call of [() => kvtide.threads(), () => kvtide.attend(one, { k: one, v: one }).out.shape.length]) {
      try { console.log(call()) } catch (error) { console.log(error.code, error.details.argument, error.details.value) }
    }`)
  return out === '' ? err : out
}

test('the environment says how many threads there are, and which form of the kernels runs', async t => {
  t.is(await answers({ KVTIDE_THREADS: '3', KVTIDE_KERNELS: 'auto' }), '3\n4\n')
  t.is(
    await answers({ KVTIDE_THREADS: 'many' }),
    'INVALID_ARGUMENT KVTIDE_THREADS many\nINVALID_ARGUMENT KVTIDE_THREADS many\n',
  )
  t.is(await answers({ KVTIDE_KERNELS: 'fast' }), `${threads()}\nINVALID_ARGUMENT KVTIDE_KERNELS fast\n`)
})
