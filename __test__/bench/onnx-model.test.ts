// Models as bytes.
import test from 'ava'

import { modelOf } from '../../bench/workloads/onnx-model.js'

test('a model of one node is what the format says', t => {
  const x = { name: 'x', type: 'float32', shape: [1, 300] } as const
  const model = modelOf({ operator: 'Op', domain: 'd', attributes: { a: 300 }, inputs: [x], outputs: [{ ...x, name: 'y', type: 'int32', shape: [] }] })
  const ports = [
    [0x5a, 20, 0x0a, 1, 0x78, 0x12, 15, 0x0a, 13, 0x08, 1, 0x12, 9, 0x0a, 2, 0x08, 1, 0x0a, 3, 0x08, 0xac, 2],
    [0x62, 11, 0x0a, 1, 0x79, 0x12, 6, 0x0a, 4, 0x08, 6, 0x12, 0],
  ]
  const node = [0x0a, 1, 0x78, 0x12, 1, 0x79, 0x22, 2, 0x4f, 0x70, 0x2a, 9, 0x0a, 1, 0x61, 0x18, 0xac, 2, 0xa0, 1, 2, 0x3a, 1, 0x64]
  const graph = [0x0a, node.length, ...node, 0x12, 2, 0x4f, 0x70, ...ports.flat()]
  const microsoft = [...new TextEncoder().encode('com.microsoft')]
  const opsets = [0x42, 4, 0x0a, 0, 0x10, 23, 0x42, 17, 0x0a, 13, ...microsoft, 0x10, 1]
  t.deepEqual([...model], [0x08, 10, 0x3a, graph.length, ...graph, ...opsets])
})
