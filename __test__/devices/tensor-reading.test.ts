// Tensor read off the main thread, on each device.
import { type HostTensor, KvCache, Tensor, type KvTideError } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { throwsCode } from '../support/throws.js'
import { elements, FLOATS, numbers, span } from '../support/tokens.js'

/** Tokens in memory of the host, which a cache on any device takes. */
const tokens = (start: number, end: number): HostTensor => ({
  data: Float32Array.from(span(start, end)),
  shape: [1, 1, end - start, 1],
})

const refusal = async (work: Promise<unknown>): Promise<string> => {
  try {
    await work
  } catch (error) {
    return (error as KvTideError).code
  }
  return 'none'
}

onDevices('it is what is read at once, in every dtype', async (t, device) => {
  for (const dtype of [...FLOATS, 'u8'] as const) {
    const data = elements(dtype, span(0, 24))
    using tensor = Tensor.from(data, [4, 6], { dtype, device })
    t.deepEqual(await tensor.toArrayAsync(), data)
    t.deepEqual(await tensor.narrow(1, 2, 3).toArrayAsync(), tensor.narrow(1, 2, 3).toArray())
    t.deepEqual(await tensor.toFloat32ArrayAsync(), Float32Array.from(span(0, 24)))
    const out = elements(dtype, span(0, 24).fill(0))
    t.is(await tensor.readIntoAsync(out), out)
    t.deepEqual(out, data)
    t.is(await refusal(tensor.readIntoAsync(elements(dtype, span(0, 23)))), 'INVALID_ARGUMENT')
    t.is((await tensor.narrow(0, 1, 0).toArrayAsync()).length, 0)
  }
})

onDevices('what it reads does not change under it, and can be disposed of', async (t, device) => {
  using cache = new KvCache({ batchSize: 1, numKvHeads: 1, headDim: 1, initialCapacity: 8, maxSeqLen: 16, device })
  const { k } = cache.update(tokens(0, 4), tokens(0, 4))
  const reading = k.toArrayAsync()
  throwsCode(t, 'BUSY', () => cache.update(tokens(4, 5), tokens(4, 5)))
  t.deepEqual(numbers(k), [0, 1, 2, 3], 'others may read')
  t.deepEqual(await reading, Float32Array.of(0, 1, 2, 3))
  cache.update(tokens(4, 5), tokens(4, 5))
  cache.truncate(1)
  cache.update(tokens(9, 10), tokens(9, 10))
  t.is(await refusal(k.toArrayAsync()), 'STALE_VIEW')
  const last = cache.getKv().k
  const ended = last.toFloat32ArrayAsync()
  last.dispose()
  cache.dispose()
  t.deepEqual(await ended, Float32Array.of(0, 9))
  t.is(await refusal(last.toArrayAsync()), 'DISPOSED')
})

onDevices('a signal ends it, and an array that is gone is refused', async (t, device) => {
  using tensor = Tensor.from(new Float32Array(8), [8], { device })
  t.is(await refusal(tensor.toArrayAsync({ signal: AbortSignal.abort() })), 'ABORTED')
  const stop = new AbortController()
  const reading = tensor.toFloat32ArrayAsync({ signal: stop.signal })
  stop.abort()
  t.is(await refusal(reading), 'ABORTED')
  const out = new Float32Array(8)
  const into = tensor.readIntoAsync(out)
  structuredClone(out.buffer, { transfer: [out.buffer] })
  t.is(await refusal(into), 'INVALID_ARGUMENT')
})
