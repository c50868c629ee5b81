// Creates and abandons caches: KVTIDE_CYCLES that are disposed of (a million by default) and a tenth as many that only garbage collection frees.
// The memory of the process may not grow. Run with --expose-gc.
import { setImmediate } from 'node:timers/promises'

import { KvCache, memoryStats, PagedKvCache, RollbackCache, RotatingKvCache, Tensor } from '../../dist/index.js'

const cycles = Number(process.env.KVTIDE_CYCLES ?? 1_000_000)
/** The most bytes of growth for 100,000 cycles, as the slope of a line through the samples. */
const SLOPE_MAX = 2 ** 20

const row = { data: new Float32Array(2), shape: [1, 1, 1, 2] }
const paged = { capacity: 4, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 2 }

/** One cache of each kind in turn, used once; returns what is to be disposed of. */
function cycle(number) {
  switch (number % 5) {
    case 0: {
      const cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 2, maxSeqLen: 4, headDim: 2 })
      return [cache.update(row, row).k, cache.snapshot(), cache]
    }
    case 1: {
      const cache = new RotatingKvCache({ maxSeqLen: 2 })
      return [cache.append(row, row).v, cache.snapshot(), cache]
    }
    case 2: {
      const cache = new RollbackCache()
      cache.append(row, row)
      return [cache.snapshot(), cache]
    }
    case 3:
      return [Tensor.from(row.data, row.shape)]
    default: {
      const cache = new PagedKvCache(paged)
      const chat = cache.openSequence()
      chat.append({ tokens: [1], k: row, v: row })
      return [chat.fork(), cache.match([1, 2]), cache]
    }
  }
}

async function settled() {
  for (let round = 0; round < 4; round++) {
    globalThis.gc()
    await setImmediate()
  }
}

/** Returns the growth for 100,000 cycles, by least squares. */
function slope(samples) {
  const mean = of => samples.reduce((sum, sample) => sum + of(sample), 0) / samples.length
  const [x, y] = [mean(sample => sample.cycles), mean(sample => sample.bytes)]
  const above = mean(sample => (sample.cycles - x) * (sample.bytes - y))
  return (above / mean(sample => (sample.cycles - x) ** 2)) * 100_000
}

async function measured(name, count, each) {
  const samples = []
  const batch = Math.ceil(count / 40)
  for (let done = 0; done < count; done += batch) {
    for (let number = done; number < done + batch; number++) {
      each(number)
      if (number % 500 === 0) await setImmediate()
    }
    await settled()
    samples.push({ cycles: done + batch, bytes: process.memoryUsage().rss })
  }
  const { usedBytes } = memoryStats()
  // The heap reaches its size in the first half.
  const grown = slope(samples.slice(samples.length / 2))
  console.log(
    `${name}: ${count} cycles, ${Math.round(grown / 1024)} KiB for 100,000 cycles, ${usedBytes} native bytes in use`,
  )
  return grown < SLOPE_MAX && usedBytes === 0
}

const disposed = await measured('disposed of', cycles, number => {
  for (const object of cycle(number)) (object.dispose ?? object.release ?? object.drop)?.call(object)
})
const collected = await measured('collected', cycles / 10, number => {
  cycle(number)
  if (number % 200 === 0) globalThis.gc()
})
process.exit(disposed && collected ? 0 : 1)
