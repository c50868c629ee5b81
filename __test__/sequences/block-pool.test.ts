// BlockPool: which blocks are in use.
import test from 'ava'

import { BlockPool } from '../../index.js'
import { throwsCode } from '../support/throws.js'

const counts = (pool: BlockPool): number[] => [pool.freeCount, pool.totalCount, pool.utilization]

test('blocks are handed out once each, until there are none', t => {
  using pool = new BlockPool({ capacity: 2 })
  t.deepEqual(counts(pool), [2, 2, 0])
  const [one, other] = [pool.allocate(), pool.allocate()]
  t.not(one, other)
  t.deepEqual(counts(pool), [0, 2, 1])
  throwsCode(t, 'OUT_OF_BLOCKS', () => pool.allocate(), { needed: 1, free: 0 })
  t.is(pool.tryAllocate(), null)
  pool.free(one)
  t.deepEqual(counts(pool), [1, 2, 0.5])
  t.not(pool.tryAllocate(), null)
})

test('an empty pool has a utilization of 0', t => {
  using pool = new BlockPool({ capacity: 0 })
  t.deepEqual(counts(pool), [0, 0, 0])
  throwsCode(t, 'OUT_OF_BLOCKS', () => pool.allocate())
  t.deepEqual(pool.allocateMany(0), [])
})

test('a block that was freed, or never handed out, is refused', t => {
  using pool = new BlockPool({ capacity: 2 })
  const block = pool.allocate()
  pool.free(block)
  throwsCode(t, 'INVALID_BLOCK', () => pool.free(block), { block, reason: 'it is already free' })
  for (const never of [1, 2, 2 ** 32, 2 ** 53 - 1]) throwsCode(t, 'INVALID_BLOCK', () => pool.free(never))
  const again = pool.allocate()
  t.not(again, block, 'the next life of a block has another number')
  throwsCode(t, 'INVALID_BLOCK', () => pool.free(block), {
    block,
    reason: 'it was freed, and this handle is of an older generation',
  })
  t.is(pool.freeCount, 1)
})

test('many blocks are taken and given back together, or not at all', t => {
  using pool = new BlockPool({ capacity: 4 })
  throwsCode(t, 'OUT_OF_BLOCKS', () => pool.allocateMany(5), { needed: 5, free: 4 })
  t.is(pool.freeCount, 4)
  const blocks = pool.allocateMany(3)
  t.is(new Set(blocks).size, 3)
  throwsCode(t, 'INVALID_BLOCK', () => pool.freeMany([...blocks, blocks[0] as number]))
  throwsCode(t, 'INVALID_BLOCK', () => pool.freeMany([blocks[0] as number, 3]))
  t.is(pool.freeCount, 1)
  pool.freeMany(Float64Array.from(blocks))
  t.is(pool.freeCount, 4)
  pool.freeMany([])
})

test('lists of blocks that cannot be read are refused', t => {
  using pool = new BlockPool({ capacity: 2 })
  const block = pool.allocate()
  const holes: number[] = [block]
  holes.length = 3
  const sparse: number[] = []
  sparse.length = 2 ** 32 - 1
  const detached = new Float64Array([block])
  structuredClone(detached, { transfer: [detached.buffer] })
  const shared = new Float64Array(new SharedArrayBuffer(8))
  for (const blocks of [
    holes,
    sparse,
    detached,
    shared,
    Object.create(Float64Array.prototype),
    new Set([block]),
    { 0: block, length: 1 },
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => pool.freeMany(blocks as number[]))
  }
  t.is(pool.freeCount, 1)
})

test('what it was made with can be read', t => {
  t.like(new BlockPool({ capacity: 1 }), { blockSize: 16, numLayers: 1, numKvHeads: 1, headDim: 1 })
  const given = { blockSize: 8, numLayers: 2, numKvHeads: 3, headDim: 4 }
  t.like(new BlockPool({ capacity: 1, ...given }), given)
  throwsCode(t, 'INVALID_ARGUMENT', () => new BlockPool({ capacity: 1, blockSize: 0 }))
})

test('a block is free when it was given back as often as it is held', t => {
  using pool = new BlockPool({ capacity: 2 })
  const block = pool.allocate()
  pool.retain(block)
  t.is(pool.count(block), 2)
  throwsCode(t, 'INVALID_BLOCK', () => pool.freeMany([block, block, block]))
  pool.free(block)
  t.deepEqual([pool.count(block), pool.freeCount], [1, 1])
  pool.free(block)
  t.is(pool.freeCount, 2)
  for (const call of [() => pool.count(block), () => pool.retain(block), () => pool.free(block)])
    throwsCode(t, 'INVALID_BLOCK', call)
})

test('room is told with the watermark left, which refuses nothing', t => {
  using pool = new BlockPool({ capacity: 4, watermark: 1 })
  t.deepEqual([pool.canAllocate(3), pool.canAllocate(4), pool.watermark], [true, false, 1])
  pool.allocateMany(4)
  t.deepEqual([pool.canAllocate(0), pool.freeCount], [false, 0])
  for (const watermark of [-1, 0.5, null, '1'])
    throwsCode(t, 'INVALID_ARGUMENT', () => new BlockPool({ capacity: 1, watermark: watermark as never }))
})
