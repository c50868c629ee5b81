// KvCache in rows of a model's size, on each device: what it shows is what went in, bit for bit.
import { KvCache } from '../../index.js'
import { onDevices, onGpus } from '../support/devices.js'
import { hosted, type Shape } from '../support/properties.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { given, placed, showsBoth, wideOn } from '../support/wide.js'

const make = ({ device, batch, heads, dim, dtype }: Shape, initialCapacity = 8): KvCache =>
  new KvCache({ device, batchSize: batch, numKvHeads: heads, headDim: dim, dtype, initialCapacity, maxSeqLen: 2048 })

onDevices('a prompt, single tokens, and growth in between', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    t.is(cache.device, device)
    showsBoth(cache.update(...given(shape, 0, 37)), shape, span(0, 37))
    for (const token of span(37, 150))
      showsBoth(cache.update(...(token % 2 === 0 ? given : placed)(shape, token, token + 1)), shape, span(0, token + 1))
    showsBoth(cache.updateFused(...placed(shape, 150, 1100)), shape, span(0, 1100))
    t.is(cache.getKv().k.device, device)
    t.is(cache.seqLen, 1100)
  }
})

onDevices('tokens cut off make room for others, and views of them are stale', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    cache.update(...given(shape, 0, 100))
    const { k: all } = cache.getKv()
    cache.truncate(60)
    const { k: first } = cache.getKv()
    cache.update(...given(shape, 200, 230))
    showsBoth(cache.getKv(), shape, [...span(0, 60), ...span(200, 230)])
    throwsCode(t, 'STALE_VIEW', () => all.toArray())
    t.notThrows(() => first.toArray())
    throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.truncate(91))
    throwsCode(t, 'CACHE_OVERFLOW', () => cache.update(...given(shape, 0, 2000)))
    showsBoth(cache.getKv(), shape, [...span(0, 60), ...span(200, 230)])
  }
})

onDevices('a snapshot keeps what is overwritten, and comes back', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape, 256)
    cache.update(...given(shape, 0, 100))
    using snapshot = cache.snapshot()
    for (const round of [1, 2]) {
      cache.truncate(40 * round)
      cache.update(...given(shape, 500 * round, 500 * round + 90))
      showsBoth(cache.getKv(), shape, [...span(0, 40 * round), ...span(500 * round, 500 * round + 90)])
      cache.restore(snapshot)
      showsBoth(cache.getKv(), shape, span(0, 100))
    }
    using other = make(shape)
    other.restore(snapshot)
    cache.dispose()
    showsBoth(other.getKv(), shape, span(0, 100))
    t.is(other.seqLen, 100)
  }
})

onDevices('memory of the host is read in any order of axes, and in part', (t, device) => {
  const shape: Shape = { device, dtype: 'f16', batch: 1, heads: 1, dim: 64 }
  using cache = make(shape)
  const [k, v] = [0, 1].map(part => hosted(shape, span(0, 20), part)) as [
    ReturnType<typeof hosted>,
    ReturnType<typeof hosted>,
  ]
  // One head: heads first and tokens first lie alike.
  const turned = (host: typeof k): typeof k => ({ ...host, shape: [1, 20, 1, 64], layout: 'bshd' })
  cache.update({ ...k, range: [0, 5] }, { ...v, range: [0, 5] })
  cache.update({ ...turned(k), range: [5, 20] }, { ...turned(v), range: [5, 20] })
  showsBoth(cache.getKv(), shape, span(0, 20))
  t.is(cache.seqLen, 20)
})

onDevices("parts of tensors are appended row by row, the cache's own among them", (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    const { k, v } = cache.update(...given(shape, 0, 30))
    using source = make(shape, 64)
    const other = source.update(...given(shape, 30, 70))
    cache.update(other.k.narrow(2, 5, 9), other.v.narrow(2, 5, 9))
    cache.update(k.narrow(2, 10, 20), v.narrow(2, 10, 20))
    showsBoth(cache.getKv(), shape, [...span(0, 30), ...span(35, 44), ...span(10, 30)])
    t.is(cache.seqLen, 59)
  }
})

onDevices('what a cache shows is appended to it once more, in the same buffer', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape, 256)
    const { k, v } = cache.update(...given(shape, 0, 30))
    cache.update(k, v)
    const { k: all, v: values } = cache.getKv()
    cache.update(all.narrow(2, 20, 20), values.narrow(2, 20, 20))
    showsBoth(cache.getKv(), shape, [...span(0, 30), ...span(0, 30), ...span(20, 30), ...span(0, 10)])
    t.is(cache.capacity, 256)
  }
})

onDevices('a draft is kept in part, or leaves no trace', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    cache.update(...given(shape, 0, 50))
    const dropped = cache.begin()
    dropped.append(...given(shape, 90, 99))
    dropped.rollback()
    const draft = cache.begin()
    showsBoth(draft.append(...given(shape, 100, 104), { parents: [-1, 0, 0, 2] }), shape, [
      ...span(0, 50),
      ...span(100, 104),
    ])
    draft.commitPath([0, 2, 3])
    showsBoth(cache.getKv(), shape, [...span(0, 50), 100, 102, 103])
    t.is(cache.seqLen, 53)
  }
})

onGpus('what the host does not see is not handed out as an array', (t, device) => {
  const [shape] = wideOn(device) as [Shape]
  using cache = make(shape)
  const { k } = cache.update(...given(shape, 0, 3))
  for (const tensor of [k, cache.kCacheRaw])
    throwsCode(t, 'DEVICE_MISMATCH', () => tensor.data, { argument: 'data', value: device, expected: 'cpu' })
  const [onCpu] = placed({ ...shape, device: 'cpu' }, 3, 4)
  const error = throwsCode(t, 'DEVICE_MISMATCH', () => cache.update(onCpu, onCpu))
  t.like(error.details, { argument: 'k', value: 'cpu', expected: device })
  using host = make({ ...shape, device: 'cpu' })
  throwsCode(t, 'DEVICE_MISMATCH', () => host.update(k, k))
  t.deepEqual([cache.seqLen, host.seqLen], [3, 0])
})
