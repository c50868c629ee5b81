// BlockTable: the blocks of one sequence, layer by layer.
import test from 'ava'

import { BlockTable } from '../../index.js'
import { throwsCode } from '../support/throws.js'

test('blocks lie one behind the other, each layer for itself', t => {
  using table = new BlockTable({ numLayers: 2, blockSize: 16 })
  t.deepEqual([table.numBlocks(0), table.tokenCapacity(0), table.getBlock(0, 0)], [0, 0, null])
  table.appendBlock(0, 7)
  table.appendBlock(0, 2 ** 53 - 1)
  table.appendBlock(1, 5)
  t.deepEqual([table.getBlock(0, 0), table.getBlock(0, 1), table.getBlock(0, 2)], [7, 2 ** 53 - 1, null])
  t.deepEqual([table.numBlocks(0), table.tokenCapacity(0)], [2, 32])
  t.deepEqual([table.getBlock(1, 0), table.numBlocks(1), table.tokenCapacity(1)], [5, 1, 16])
})

test('a logical block out of range is null, a layer out of range is refused', t => {
  using table = new BlockTable({ numLayers: 1, blockSize: 4 })
  t.is(table.getBlock(0, 2 ** 31 - 1), null)
  for (const call of [
    () => table.appendBlock(1, 0),
    () => table.getBlock(1, 0),
    () => table.numBlocks(1),
    () => table.tokenCapacity(2 ** 31 - 1),
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', call)
  }
  t.is(table.numBlocks(0), 0)
})

test('it may have as many layers as there are numbers, at no cost', t => {
  using table = new BlockTable({ numLayers: 2 ** 31 - 1, blockSize: 2 ** 31 - 1 })
  table.appendBlock(2 ** 31 - 2, 1)
  table.appendBlock(2 ** 31 - 2, 2)
  t.is(table.tokenCapacity(2 ** 31 - 2), 2 * (2 ** 31 - 1))
  t.like(table, { numLayers: 2 ** 31 - 1, blockSize: 2 ** 31 - 1 })
  throwsCode(t, 'INVALID_ARGUMENT', () => new BlockTable({ numLayers: 0, blockSize: 1 }))
})
