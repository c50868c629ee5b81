// A decoder of two layers with GroupQueryAttention that takes embeddings, and the model of its embeddings, small enough to be written by a test.
//
//     inputs_embeds -> q, k, v -> GroupQueryAttention over the past -> + rows of the layer -> .. -> logits
import {
  ELEMENT,
  floatsOf,
  type GraphOf,
  integersOf,
  modelBytes,
  type NodeOf,
  nodeOf,
  type PortOf,
} from './model-bytes.js'

const WIDTH = 32
const HEADS = 2
const DIM = 16
const ROWS = 8
const LAYERS = [0, 1]
/** Positions in its rotary tables. */
const POSITIONS = 64
/** The size of its vocabulary. */
export const GROUPED_VOCABULARY = 40

/** A form of the decoder. */
export interface GroupedDecoder {
  /** Rows of each layer as an input, for all layers beside each other or with an axis of their own; or from a table, by ids that are an input beside the embeddings. */
  readonly perLayer?: 'beside' | 'apart' | 'ids' | 'none'
  /** The operator that rotates queries and keys: three rows of positions are for MRotaryEmbedding. */
  readonly rotary?: 'inside' | 'three rows'
  /** The second layer has no keys and values: the presents of the first one are its past. */
  readonly isShared?: boolean
}

/** Numbers between -1 and 1 that look random. */
const weights = (name: string, dims: readonly number[], seed: number, size = 0.25): ReturnType<typeof floatsOf> =>
  floatsOf(
    name,
    dims,
    Array.from({ length: dims.reduce((product, of) => product * of, 1) }, (_, at) => Math.sin(at * at + seed) * size),
  )

const SIDES = ['key', 'value'] as const
const past = (layer: number, side: string): string => `past_key_values.${layer}.${side}`
const present = (layer: number, side: string): string => `present.${layer}.${side}`
const integer = (name: string, value: number): ReturnType<typeof integersOf> => integersOf(name, [], [value])
const pair = (name: string, value: number): ReturnType<typeof integersOf> => integersOf(name, [1], [value])

/** The nodes of a layer, from `x` to `x` of the next one. */
function layerOf(layer: number, { perLayer = 'none', rotary = 'inside', isShared = false }: GroupedDecoder): NodeOf[] {
  const own = (name: string): string => `${name}.${layer}`
  const isOwn = !isShared || layer === 0
  const turned = rotary === 'three rows' ? ['q', 'k'] : []
  const given = ['q', 'k', 'v'].map(name => own(turned.includes(name) ? `${name}.turned` : name))
  const operands = isOwn ? given : [given[0] as string, 'empty', 'empty']
  const before = SIDES.map(side => (isOwn ? past(layer, side) : present(0, side)))
  const tables = rotary === 'inside' ? ['cos', 'sin'] : []
  const made = SIDES.map(side => (isOwn ? present(layer, side) : own(`unused.${side}`)))
  const rows = {
    beside: [nodeOf('Slice', ['per_layer_inputs', own('from'), own('to'), 'two'], own('rows'))],
    apart: [nodeOf('Gather', ['per_layer_inputs', own('index')], own('rows'), { axis: 2 })],
    ids: [nodeOf('Gather', [own('table'), 'input_ids'], own('rows'))],
    none: [nodeOf('Slice', [own('x'), 'zero', 'eight', 'two'], own('rows'))],
  }
  return [
    ...(isOwn ? ['q', 'k', 'v'] : ['q']).map(name => nodeOf('MatMul', [own('x'), own(`${name}.weight`)], own(name))),
    ...turned.map(name => ({
      operator: 'MRotaryEmbedding',
      domain: 'com.microsoft',
      inputs: [own(name), 'position_ids', 'cos', 'sin'],
      outputs: [own(`${name}.turned`)],
      attributes: { num_heads: name === 'q' ? HEADS : 1, mrope_section: [2, 3, 3] },
    })),
    {
      operator: 'GroupQueryAttention',
      domain: 'com.microsoft',
      inputs: [...operands, ...before, 'last', 'total', ...tables],
      outputs: [own('attended'), ...made],
      attributes: { num_heads: HEADS, kv_num_heads: 1, do_rotary: tables.length > 0 ? 1 : 0 },
    },
    nodeOf('MatMul', [own('attended'), own('o.weight')], own('projected')),
    nodeOf('Add', [own('x'), own('projected')], own('sum')),
    ...rows[perLayer],
    nodeOf('MatMul', [own('rows'), own('rows.weight')], own('added')),
    nodeOf('Add', [own('sum'), own('added')], `x.${layer + 1}`),
  ]
}

/** The numbers of cached tokens and of all tokens, and keys without rows. */
const LENGTHS: readonly NodeOf[] = [
  nodeOf('ReduceSum', ['attention_mask', 'one'], 'counted', { keepdims: 0 }),
  nodeOf('Sub', ['counted', 'one.scalar'], 'before'),
  nodeOf('Cast', ['before'], 'last', { to: ELEMENT.int32 }),
  nodeOf('Shape', ['attention_mask'], 'mask.shape'),
  nodeOf('Gather', ['mask.shape', 'one.scalar'], 'whole'),
  nodeOf('Cast', ['whole'], 'total', { to: ELEMENT.int32 }),
]

const EMPTY: readonly NodeOf[] = [
  nodeOf('Shape', ['q.1'], 'batch', { start: 0, end: 1 }),
  nodeOf('Concat', ['batch', 'no.rows'], 'empty.shape', { axis: 0 }),
  nodeOf('ConstantOfShape', ['empty.shape'], 'empty'),
]

function constantsOf({ perLayer, isShared }: GroupedDecoder): NonNullable<GraphOf['constants']> {
  const angles = (turn: (angle: number) => number): number[] =>
    Array.from({ length: POSITIONS * (DIM / 2) }, (_, at) => turn(Math.floor(at / 8) / 10_000 ** ((at % 8) / 8)))
  return [
    ...LAYERS.flatMap(layer => [
      weights(`q.weight.${layer}`, [WIDTH, HEADS * DIM], layer),
      weights(`k.weight.${layer}`, [WIDTH, DIM], 10 + layer),
      weights(`v.weight.${layer}`, [WIDTH, DIM], 20 + layer),
      weights(`o.weight.${layer}`, [HEADS * DIM, WIDTH], 30 + layer),
      weights(`rows.weight.${layer}`, [ROWS, WIDTH], 40 + layer),
      ...(perLayer === 'ids' ? [weights(`table.${layer}`, [GROUPED_VOCABULARY, ROWS], 50 + layer, 1)] : []),
      integer(`index.${layer}`, layer),
      pair(`from.${layer}`, ROWS * layer),
      pair(`to.${layer}`, ROWS * (layer + 1)),
    ]),
    weights('head.weight', [WIDTH, GROUPED_VOCABULARY], 60),
    floatsOf('cos', [POSITIONS, DIM / 2], angles(Math.cos)),
    floatsOf('sin', [POSITIONS, DIM / 2], angles(Math.sin)),
    pair('zero', 0),
    pair('one', 1),
    pair('two', 2),
    pair('eight', ROWS),
    integer('one.scalar', 1),
    ...(isShared ? [integersOf('no.rows', [2], [0, DIM])] : []),
  ]
}

const EMBEDS: PortOf = { name: 'inputs_embeds', dims: ['batch', 'new', WIDTH] }
const IDS: PortOf = { name: 'input_ids', element: ELEMENT.int64, dims: ['batch', 'new'] }
const PER_LAYER: Readonly<Record<string, PortOf>> = {
  beside: { name: 'per_layer_inputs', dims: ['batch', 'new', ROWS * LAYERS.length] },
  apart: { name: 'per_layer_inputs', dims: ['batch', 'new', LAYERS.length, ROWS] },
}

const port = (name: string, length: string): PortOf => ({ name, dims: ['batch', 1, length, DIM] })

/** The bytes of the decoder. */
export function groupedDecoder(form: GroupedDecoder): Buffer {
  const { perLayer = 'none', rotary = 'inside', isShared = false } = form
  const own = isShared ? [0] : LAYERS
  const rows = PER_LAYER[perLayer]
  const [first, ...others] = LAYERS.map(layer => layerOf(layer, form))
  return modelBytes({
    nodes: [
      nodeOf('Identity', ['inputs_embeds'], 'x.0'),
      ...LENGTHS,
      ...(first as NodeOf[]),
      ...others.flatMap(nodes => (isShared ? [nodes[0] as NodeOf, ...EMPTY, ...nodes.slice(1)] : nodes)),
      nodeOf('MatMul', [`x.${LAYERS.length}`, 'head.weight'], 'logits'),
    ],
    inputs: [
      EMBEDS,
      ...(perLayer === 'ids' ? [IDS] : []),
      { name: 'attention_mask', element: ELEMENT.int64, dims: ['batch', 'total'] },
      ...(rotary === 'three rows' ? [{ name: 'position_ids', element: ELEMENT.int64, dims: [3, 'batch', 'new'] }] : []),
      ...(rows === undefined ? [] : [rows]),
      ...own.flatMap(layer => SIDES.map(side => port(past(layer, side), 'past'))),
    ],
    outputs: [
      { name: 'logits', dims: ['batch', 'new', GROUPED_VOCABULARY] },
      ...own.flatMap(layer => SIDES.map(side => port(present(layer, side), 'total'))),
    ],
    constants: constantsOf(form),
  })
}

/** The bytes of the model that gives its embeddings, and rows of layers. */
export function groupedEmbeddings({ perLayer = 'none' }: GroupedDecoder): Buffer {
  const rows = PER_LAYER[perLayer]
  const dims = (rows?.dims?.slice(2) ?? []) as number[]
  const given = rows === undefined ? [] : [nodeOf('Gather', ['rows.table', 'input_ids'], rows.name)]
  return modelBytes({
    nodes: [nodeOf('Gather', ['embed.table', 'input_ids'], EMBEDS.name), ...given],
    inputs: [IDS],
    outputs: [EMBEDS, ...(rows === undefined ? [] : [rows])],
    constants: [
      weights('embed.table', [GROUPED_VOCABULARY, WIDTH], 70, 1),
      ...(rows === undefined ? [] : [weights('rows.table', [GROUPED_VOCABULARY, ...dims], 80, 1)]),
    ],
  })
}
