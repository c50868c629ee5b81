// The rotating caches in rows of a model's size, on each device: wrapping, compaction, sinks and prompts longer than the window.
import { RotatingCache, RotatingKvCache, type RotatingKvCacheOptions } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { hosted, shows, type Shape } from '../support/properties.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { given, placed, showsBoth, wideOn } from '../support/wide.js'

const make = ({ device }: Shape, options: Partial<RotatingKvCacheOptions> = {}): RotatingKvCache =>
  new RotatingKvCache({ device, maxSeqLen: 40, sinks: 3, slack: 10, ...options })

/** The tokens that a window of 40 keeps of the first so many, besides the first three. */
const retained = (length: number): number[] =>
  length <= 43 ? span(0, length) : [...span(0, 3), ...span(length - 40, length)]

onDevices('token by token the window moves on and goes back to the front', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    using single = new RotatingCache({ device, dim: 2, maxSeqLen: 40, sinks: 3, slack: 10 })
    for (const token of span(0, 130)) {
      const [k, v] = (token % 3 === 0 ? placed : given)(shape, token, token + 1)
      showsBoth(cache.append(k, v), shape, retained(token + 1))
      shows(single.append(k), shape, retained(token + 1), 0)
    }
    t.deepEqual([cache.currentSeqLen, cache.retainedLen, single.retainedLen], [130, 43, 43])
    t.true(cache.stats().compactions > 0)
    t.deepEqual(cache.currentData()?.k.keyPositions, [0, 90])
  }
})

onDevices('a prompt longer than the window shows everything that came before and is new', (t, device) => {
  for (const shape of wideOn(device)) {
    for (const length of [41, 44, 53, 300]) {
      using cache = make(shape)
      cache.append(...given(shape, 0, 20))
      showsBoth(cache.append(...given(shape, 20, 20 + length)), shape, span(0, 20 + length))
      showsBoth(cache.currentData(), shape, retained(20 + length))
      const more = cache.append(...given(shape, 20 + length, 22 + length))
      showsBoth(more, shape, [...retained(20 + length), 20 + length, 21 + length])
      showsBoth(cache.append(...given(shape, 22 + length, 23 + length)), shape, retained(23 + length))
      t.is(cache.currentSeqLen, 23 + length)
    }
  }
})

onDevices('a snapshot of a window survives compactions', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    cache.append(...given(shape, 0, 50))
    using snapshot = cache.snapshot()
    for (const token of span(50, 120)) cache.append(...given(shape, token, token + 1))
    cache.restore(snapshot)
    showsBoth(cache.currentData(), shape, retained(50))
    cache.append(...given(shape, 50, 51))
    showsBoth(cache.currentData(), shape, retained(51))
    t.is(cache.currentSeqLen, 51)
  }
})

onDevices('a draft over a full window is taken back exactly', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = make(shape)
    for (const token of span(0, 60)) cache.append(...given(shape, token, token + 1))
    const draft = cache.begin()
    for (const token of span(60, 100)) draft.append(...given(shape, token, token + 1))
    draft.rollback()
    showsBoth(cache.currentData(), shape, retained(60))
    const kept = cache.begin()
    for (const token of span(60, 75)) kept.append(...given(shape, token, token + 1))
    kept.commit(4)
    showsBoth(cache.currentData(), shape, retained(64))
    t.is(cache.currentSeqLen, 64)
  }
})

onDevices('accepted tokens of a batched append come as a copy', (t, device) => {
  const shape: Shape = { device, dtype: 'f16', batch: 1, heads: 2, dim: 64 }
  using cache = new RotatingCache({ device, dim: 2, maxSeqLen: 40 })
  cache.append(hosted(shape, span(0, 10), 0))
  using before = cache.snapshot()
  cache.append(hosted(shape, span(10, 16), 0))
  const accepted = cache.acceptedAppendFromBatchedAppend(before, 13, 0, 1)
  if (accepted !== null) shows(accepted, shape, span(10, 13), 0)
  t.is(accepted?.device, device)
  throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.setLen(17))
})
