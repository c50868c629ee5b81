// PagedKvCache: where its layers live.
import test from 'ava'

import { PagedKvCache } from '../../index.js'
import { HYBRID, stepOf } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

test('layers may live on several devices, by name', t => {
  for (const kind of [{ capacity: 8 }, { memoryBytes: 1 << 16, maxSequences: 2 }] as const) {
    using cache = new PagedKvCache({ model: HYBRID, ...kind, device: HYBRID.layers.map(() => 'cpu') })
    t.deepEqual([cache.device, cache.groups.map(group => group.device)], ['cpu', ['cpu', 'cpu']])
    t.true(stepOf(cache, cache.openSequence(), span(0, 5), 5) < 1e-6)
    const refused = (device: readonly unknown[], details: object): void => {
      throwsCode(t, 'INVALID_ARGUMENT', () => new PagedKvCache({ model: HYBRID, ...kind, device: device as string[] }), details as never)
    }
    refused(['cpu', 'cpu', 'cpu'], { argument: 'device.length', value: 3, expected: '4, one for each layer' })
    refused([], { argument: 'device', value: [], expected: 'a name for each layer' })
    refused(['cpu', 5, 'cpu', 'cpu'], { argument: 'device[1]', value: 5, expected: 'a string' })
    refused(['cpu', 'gpu', 'cpu', 'cpu'], { argument: 'device', value: 'gpu', expected: 'one of cpu, cuda, cuda:N, metal, auto' })
  }
})
