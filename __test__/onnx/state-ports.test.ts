// States among the inputs and outputs of a graph: what is recognised, and what is refused by name.
import test, { type ExecutionContext } from 'ava'

import { isKvTideError } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { pastLayers } from '../../lib/onnx/past-layers.js'
import { plainPorts } from '../../lib/onnx/plain.js'
import { type OnnxNames, OnnxPorts, readNames } from '../../lib/onnx/ports.js'
import { sessionOf } from '../../lib/onnx/runtime-session.js'
import { StateTensors } from '../../lib/onnx/state-tensors.js'
import {
  BUILDER,
  hybridGraph,
  type HybridForm,
  type HybridNames,
  STATES,
  UNDERSCORES,
} from '../support/onnx/hybrid-graph.js'
import { ELEMENT, floatsOf, type GraphOf, nodeOf, type PortOf } from '../support/onnx/model-bytes.js'

const opened = (form: HybridForm = {}) => binding.NativeOnnxGraph.of(hybridGraph(form))

const SIZES = { numKvHeads: 1, headDim: 8, valueHeadDim: 8 }
const tensor = (name: string, shape: readonly number[], dtype = 'f32') => ({ name, shape, dtype })

for (const [form, names] of Object.entries({ UNDERSCORES, STATES, BUILDER })) {
  test(`states are found by name, beside keys and values or without: ${form}`, async t => {
    t.deepEqual(pastLayers(plainPorts(await opened({ names })), {}) as unknown, [
      { kind: 'state', tensors: [tensor('conv', [8, 2])] },
      { kind: 'full', ...SIZES, tensors: [tensor('conv', [8, 3])] },
      { kind: 'state', tensors: [tensor('recurrent', [8])] },
      { kind: 'state', tensors: [tensor('conv', [8, 1]), tensor('ssm', [2, 4])] },
    ])
    const [first] = pastLayers(plainPorts(await opened({ names, hasAttention: false, isHalf: true })), {}) as unknown[]
    t.deepEqual(first, { kind: 'state', tensors: [tensor('conv', [8, 2], 'f16')] })
  })
}

test('numbers without a past and a state are left out, and windows are those of the numbers', async t => {
  const graph = await opened({
    names: (layer, name) => [`past.${3 * layer + 1}.${name}`, `present.${3 * layer + 1}.${name}`],
  })
  // The keys and values keep their number 1, which the first state has here.
  const ports = plainPorts(graph)
  t.deepEqual(ports.numbers, [1])
  t.deepEqual(
    ports.states.map(({ layer, name }) => `${layer} ${name}`),
    ['1 conv', '4 conv', '7 recurrent', '10 conv', '10 ssm'],
  )
  const layers = pastLayers(ports, { windows: [null, null, 5] }) as unknown as readonly {
    kind: string
    tensors: unknown[]
  }[]
  t.deepEqual(
    layers.map(({ kind, tensors }) => `${kind} ${tensors.length}`),
    ['full 1', 'state 1', 'state 1', 'state 2'],
  )
  const error = t.throws(() => pastLayers(ports, { windows: [] }))
  t.true(isKvTideError(error) && error.code === 'INVALID_ARGUMENT' && error.message.startsWith('config is 0'))
})

const SLASHES: HybridNames = (layer, name) => [`in/${name}@${layer}`, `out/${name}@${layer}`]

test('templates of the caller name states, and take any tensor', async t => {
  const session = sessionOf(await opened({ names: SLASHES }))
  const given: OnnxNames = {
    pastKey: 'past_key_values.%d.key',
    pastValue: 'past_key_values.%d.value',
    presentKey: 'present.%d.key',
    presentValue: 'present.%d.value',
    pastStates: 'in/%s@%d',
    presentStates: 'out/%s@%d',
  }
  t.is(new OnnxPorts(session, readNames('names', given)).states.length, 5)
  refused(t, () => new OnnxPorts(session), 'in/conv@0', /its purpose is not known/)
  for (const [field, wrong] of [
    ['pastStates', 'in/%s'],
    ['presentStates', 'out/@%d'],
    ['presentStates', undefined],
    ['pastStates', '%d.%d.%s'],
  ] as const) {
    const error = t.throws(() => readNames('names', { ...given, [field]: wrong }))
    t.true(isKvTideError(error) && error.code === 'INVALID_ARGUMENT', String(error))
    t.regex((error as Error).message, new RegExp(`^names\\.${field} is `))
  }
})

function refused(t: ExecutionContext, run: () => unknown, node: string, reason: RegExp): void {
  const error = t.throws(run)
  t.true(isKvTideError(error) && error.code === 'UNSUPPORTED_GRAPH', String(error))
  const details = (error as { details?: { node?: string; reason?: string } }).details
  t.is(details?.node, node)
  t.regex(details?.reason ?? '', reason)
}

/** A graph with ports that are left out, added or changed. */
const changed =
  (
    change: (ports: { readonly inputs: readonly PortOf[]; readonly outputs: readonly PortOf[] }) => Partial<GraphOf>,
  ): NonNullable<HybridForm['change']> =>
  graph => ({ ...graph, ...change(graph) })

/** A graph with one more state, which is an output as it was, and an input unless it is left out. */
const more =
  (past: string, present: string, dims: readonly number[], isLeftOut = false): NonNullable<HybridForm['change']> =>
  ({ nodes, inputs, outputs, constants = [] }) => ({
    nodes: [...nodes, nodeOf('Identity', [isLeftOut ? 'none' : past], present)],
    inputs: isLeftOut ? inputs : [...inputs, { name: past, dims }],
    outputs: [...outputs, { name: present, dims }],
    constants: [...constants, floatsOf('none', [1], [0])],
  })

const withShape = (name: string, port: Partial<PortOf>) =>
  changed(({ inputs, outputs }) => ({
    inputs: inputs.map(one => (one.name === name ? { ...one, ...port } : one)),
    outputs,
  }))

const BAD: readonly (readonly [title: string, change: HybridForm['change'], node: string, reason: RegExp])[] = [
  [
    'an input without its output',
    changed(({ inputs, outputs }) => ({ inputs, outputs: outputs.filter(({ name }) => name !== 'present_ssm.3') })),
    'present_ssm.3',
    /it is missing, but past_ssm\.3 needs it/,
  ],
  [
    'an output without its input',
    more('past_conv.2', 'present_conv.2', [1, 8, 2], true),
    'past_conv.2',
    /it is missing, but there is present_conv\.2/,
  ],
  [
    'a state twice',
    more('past.2.recurrent', 'present.2.recurrent', [1, 8]),
    'past.2.recurrent',
    /it is the same state as past_recurrent\.2/,
  ],
  [
    'a rank that is not declared',
    withShape('past_conv.0', { dims: undefined as never }),
    'past_conv.0',
    /its dimensions are \[\], expected/,
  ],
  [
    'a batch alone',
    withShape('past_recurrent.2', { dims: ['batch'] }),
    'past_recurrent.2',
    /\[batch\], expected the batch and at least one more/,
  ],
  [
    'a size that is not fixed',
    withShape('past_conv.0', { dims: ['batch', 8, 'columns'] }),
    'past_conv.0',
    /\[batch, 8, columns\], expected fixed sizes/,
  ],
  [
    'a fixed batch of more',
    withShape('past_conv.0', { dims: [2, 8, 2] }),
    'past_conv.0',
    /\[2, 8, 2\], expected the batch, or 1, at the start/,
  ],
  [
    'codes',
    withShape('past_ssm.3', { element: ELEMENT.int8 }),
    'past_ssm.3',
    /its type is int8, expected float32 or float16/,
  ],
]

for (const [title, change, node, reason] of BAD) {
  test(`states that are refused by name: ${title}`, async t => {
    const graph = await opened({ change: change as NonNullable<HybridForm['change']> })
    refused(t, () => pastLayers(plainPorts(graph), {}), node, reason)
  })
}

/** A tensor as far as states read it. */
class Fake {
  readonly type: string
  readonly data: Uint16Array
  readonly dims: readonly number[]

  constructor(type: string, data: Uint16Array, dims: readonly number[]) {
    this.type = type
    this.data = data
    this.dims = dims
  }
}

test('states of half floats may be negative or infinite, but not NaN; a cache has exactly those of the session', t => {
  const port = { layer: 0, name: 'conv', past: 'p', present: 'q', input: { type: 'float16', shape: [1, 3] } }
  const kept = { layer: 0, name: 'conv', shape: [3], dtype: 'f16', offset: 0, bytes: 6 }
  const group = { kind: 'state', layers: [0], tensors: [kept], bytes: 64 }
  const made = (...groups: readonly object[]) =>
    new StateTensors({ states: [port] } as never, groups as never, Fake as never)
  const slot = (...bits: readonly number[]): Uint8Array =>
    made(group).slot(new Map([['p', new Fake('float16', Uint16Array.from(bits), [1, 3])]]) as never)
  t.deepEqual([...new Uint16Array(slot(0xbc00, 0x7c00, 0xfc00).buffer, 0, 3)], [0xbc00, 0x7c00, 0xfc00])
  for (const nan of [0x7e00, 0xfe00, 0x7c01]) t.throws(() => slot(0, nan, 0), { code: 'RUNTIME_FAILED' })
  t.throws(() => made(group, group), { code: 'INVALID_ARGUMENT', message: /on one device/ })
  const larger = { ...group, tensors: [kept, { ...kept, name: 'ssm' }] }
  t.throws(() => made(larger), { code: 'INVALID_ARGUMENT', message: /a cache with 1 states/ })
  t.throws(() => made(group).pasts(new Uint8Array(63)), { code: 'INVALID_ARGUMENT' })
})
