// Every export of kvtide/onnx and every member with every wrong value: a coded error, and nothing has changed.
import test from 'ava'

import * as onnx from '../../onnx.js'
import {
  disposedThis,
  missingArguments,
  passed,
  readOnce,
  strangeThis,
  works,
  wrongArguments,
} from '../support/arguments/checks.js'
import { inOwnFolder } from '../support/arguments/files.js'
import { callOf, everything } from '../support/arguments/row.js'
import { loadRows, onnxRows } from '../support/arguments/rows-onnx.js'
import { onnxTest } from '../support/onnx/available.js'
import { Dice, ToyBackend, toyModel } from '../support/onnx/toy-model.js'

inOwnFolder()

const rows = [...onnxRows, ...loadRows]

test('the table has a row for every export and every member, and no other', t => {
  t.deepEqual([...new Set(rows.map(row => row.name))].toSorted(), everything(onnx).toSorted())
})

test('every row works with the values that it calls right', async t => {
  await works(t, onnxRows, name => name.startsWith('new ') && name !== 'new OnnxPast')
})

test('a wrong argument is refused with its code, and nothing has changed', async t => {
  passed(t, await wrongArguments(onnxRows))
})

onnxTest('a model that is loaded in a wrong way is refused with its code', async t => {
  passed(t, await wrongArguments(loadRows))
})

test('a missing argument is a wrong one', async t => {
  passed(t, await missingArguments(rows))
})

test('a member called on something else is refused', async t => {
  passed(t, await strangeThis(onnxRows, false))
})

test('a member called on an object that was disposed of is refused', async t => {
  passed(t, await disposedThis(onnxRows.filter(({ name }) => !name.startsWith('Generation'))))
})

test('every option is read once, also through a proxy', async t => {
  await readOnce(t, onnxRows)
})

test('what a getter throws comes out as it is, and nothing has changed', async t => {
  const mine = new Error('mine')
  const throwing = (name: string): object =>
    Object.defineProperty({}, name, {
      enumerable: true,
      get: () => {
        throw mine
      },
    })
  for (const row of onnxRows) {
    for (const [place, { kind }] of row.params.entries()) {
      for (const { name, rest } of kind.fields ?? []) {
        const self = row.self()
        const args = row.params.map((other, at) =>
          at === place
            ? Object.defineProperties({ ...rest() }, Object.getOwnPropertyDescriptors(throwing(name)))
            : other.valid(self as never),
        )
        const before = self instanceof onnx.OnnxSequence ? [...self.tokens] : undefined
        let thrown: unknown
        try {
          await callOf(row)(self, args)
        } catch (error) {
          thrown = error
        }
        t.is(thrown, mine, `${row.name}: ${name}`)
        if (self instanceof onnx.OnnxSequence) t.deepEqual([...self.tokens], before)
      }
    }
  }
})

test('what belongs to another model is refused, and both are as they were', async t => {
  const [one, other] = [1, 2].map(seed => toyModel(new ToyBackend(new Dice(seed)), { capacity: 16 })) as [
    onnx.OnnxModel,
    onnx.OnnxModel,
  ]
  const [chat, foreign] = [one.open({ tokens: [1, 2, 3] }), other.open({ tokens: [4, 5] })]
  await one.run([{ sequence: chat }])
  await other.run([{ sequence: foreign }])
  const refused = async (code: string, argument: string, call: () => unknown): Promise<void> => {
    const error = (await t.throwsAsync(async () => await call())) as Error & {
      readonly code: string
      readonly details: { readonly argument?: string }
    }
    t.deepEqual([error.code, error.details.argument ?? ''], [code, argument])
  }
  await refused('INVALID_ARGUMENT', 'sequence', () => one.generate(foreign))
  await refused('INVALID_ARGUMENT', 'entries[1].sequence', () =>
    one.run([
      { sequence: chat, tokens: [6] },
      { sequence: foreign, tokens: [6] },
    ]),
  )
  await refused('SNAPSHOT_INVALID', '', () => chat.restore(foreign.snapshot()))
  await refused('SNAPSHOT_INVALID', '', () => chat.restore(one.cache.openSequence().snapshot()))
  await refused('INVALID_ARGUMENT', 'sequence', () => one.generate(one.cache.openSequence() as never))
  t.deepEqual([[...chat.tokens], [...foreign.tokens], chat.length, foreign.length], [[1, 2, 3], [4, 5], 3, 2])
  foreign.dispose()
  await refused('INVALID_ARGUMENT', 'sequence', () => one.generate(foreign))
  await refused('DISPOSED', '', () => other.generate(foreign).next())
  await other.dispose()
  await refused('DISPOSED', '', () => other.open())
  await refused('DISPOSED', '', () => other.run([]))
  await refused('DISPOSED', '', () => other.between(() => 1))
  await refused('DISPOSED', '', () => other.generate(chat))
  await one.dispose()
})
