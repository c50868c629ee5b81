// Every export and every member with every wrong value: each throws an error with a code, and changes nothing.
import test from 'ava'

import * as kvtide from '../../index.js'
import {
  disposedThis,
  ending,
  missingArguments,
  readOnce,
  strangeThis,
  works,
  wrongArguments,
} from '../support/arguments/checks.js'
import { inOwnFolder } from '../support/arguments/files.js'
import { everything } from '../support/arguments/row.js'
import { attendRows } from '../support/arguments/rows-attend.js'
import { contiguousRows } from '../support/arguments/rows-contiguous.js'
import { modelRows } from '../support/arguments/rows-model.js'
import { otherRows } from '../support/arguments/rows-others.js'
import { pagedRows } from '../support/arguments/rows-paged.js'
import { routerRows } from '../support/arguments/rows-router.js'
import { storeRows } from '../support/arguments/rows-stores.js'

inOwnFolder()

const rows = [...contiguousRows, ...attendRows, ...pagedRows, ...modelRows, ...storeRows, ...routerRows, ...otherRows]
const { limitBytes } = kvtide.memoryStats()

test.serial('the table has a row for every export and every member, and no other', async t => {
  // A call that takes arguments of several forms has one row per form.
  t.deepEqual([...new Set(rows.map(row => row.name))].toSorted(), everything().toSorted())
})

test.serial('every row works with the values that it calls right', async t => {
  await works(t, rows, name => name.startsWith('new ') && /Tensor|Snapshot|Mark|Sequence|Step|PrefixMatch/.test(name))
  kvtide.setMemoryLimit(limitBytes)
})

test.serial('a wrong argument is refused with its code, and nothing has changed', async t => {
  const { count, wrong } = await wrongArguments(rows)
  kvtide.setMemoryLimit(limitBytes)
  t.log(`${count} checks`)
  t.deepEqual(wrong, [])
  t.true(count > 5000)
})

test.serial('a missing argument is a wrong one', async t => {
  const { count, wrong } = await missingArguments(rows)
  t.log(`${count} checks`)
  t.deepEqual(wrong, [])
})

test.serial('a member called on something else is refused', async t => {
  const { count, wrong } = await strangeThis(rows)
  t.log(`${count} checks`)
  t.deepEqual(wrong, [])
})

test.serial('a member called on an object that was disposed of is refused', async t => {
  const { count, wrong } = await disposedThis(rows)
  t.log(`${count} checks`)
  t.deepEqual(wrong, [])
})

test.serial('a class called without new throws what the language throws', async t => {
  for (const name of everything().filter(known => known.startsWith('new '))) {
    const [, owner] = name.split(' ') as [string, string]
    const error = t.throws(() => (Reflect.get(kvtide, owner) as () => unknown)(), { instanceOf: TypeError })
    t.false(kvtide.isKvTideError(error))
  }
})

test.serial('no other code can make an object that passes for one of ours', async t => {
  const base = Object.getPrototypeOf(kvtide.KvCache) as new (...args: unknown[]) => object
  const rotating = Object.getPrototypeOf(kvtide.RotatingCache) as new (...args: unknown[]) => object
  t.is(await ending(() => new base({}, kvtide.KvCache)), 'INVALID_ARGUMENT')
  t.is(await ending(() => new base(Symbol('kvtide'), {}, kvtide.KvCache)), 'INVALID_ARGUMENT')
  t.is(await ending(() => new rotating({}, kvtide.RotatingCache, [{}, {}])), 'INVALID_ARGUMENT')
  t.is(await ending(() => Reflect.construct(base, [{}, kvtide.KvCache], kvtide.KvCache) as object), 'INVALID_ARGUMENT')
  for (const name of everything().filter(known => known.startsWith('new ') && !known.endsWith('Error'))) {
    const [, owner] = name.split(' ') as [string, string]
    const { prototype } = Reflect.get(kvtide, owner) as { prototype: object }
    t.is(await ending(() => Reflect.construct(base, [undefined, {}, prototype.constructor])), 'INVALID_ARGUMENT')
  }
})

test.serial("a class of the user's own that extends one of ours works like it", async t => {
  class Mine extends kvtide.KvCache {
    name = 'mine'
  }
  using mine = new Mine({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 2, headDim: 1 })
  t.deepEqual([mine.name, mine.seqLen, mine.maxSeqLen], ['mine', 0, 2])
})

test.serial('every option is read once, also through a proxy', async t => {
  await readOnce(t, rows)
})
