// A decoder of one layer with one head of keys and values, which are beside each other in the rows of one past, as older exports of gpt_bigcode have them.
//
//     input_ids -> Gather -> queries, a row for each token and head -> scores -> softmax -> values -> logits
//                         -> Concat behind the past -> Split -> keys, values
import { ELEMENT, floatsOf, integersOf, modelBytes, nodeOf } from './model-bytes.js'

const HEADS = 4
const DIM = 8
const WIDTH = HEADS * DIM
/** The size of its vocabulary. */
export const BESIDE_VOCABULARY = 40

const PAST = 'past_key_values.0.key_value'
const PRESENT = 'present.0.key_value'

/** Numbers that look random. */
const weights = (name: string, dims: readonly number[], seed: number): ReturnType<typeof floatsOf> =>
  floatsOf(
    name,
    dims,
    Array.from({ length: dims.reduce((product, of) => product * of, 1) }, (_, at) => Math.sin(at * at + seed) * 0.25),
  )

/** The keys that each query attends to, `[1, tokens, 1, all]`. */
const MASK = [
  nodeOf('Shape', [PAST], 'past.shape'),
  nodeOf('Gather', ['past.shape', 'one'], 'before'),
  nodeOf('Shape', ['input_ids'], 'ids.shape'),
  nodeOf('Gather', ['ids.shape', 'one'], 'new'),
  nodeOf('Add', ['before', 'new'], 'total'),
  nodeOf('Range', ['zero', 'total', 'one'], 'places'),
  nodeOf('Range', ['before', 'total', 'one'], 'own'),
  nodeOf('Unsqueeze', ['own', 'axis.one'], 'rows'),
  nodeOf('LessOrEqual', ['places', 'rows'], 'flat'),
  nodeOf('Unsqueeze', ['flat', 'axes'], 'seen'),
]

/** The bytes of the decoder. */
export function besideDecoder(): Buffer {
  return modelBytes({
    nodes: [
      nodeOf('Gather', ['embed', 'input_ids'], 'x'),
      nodeOf('MatMul', ['x', 'q.weight'], 'q.packed'),
      nodeOf('MatMul', ['x', 'kv.weight'], 'kv'),
      nodeOf('Concat', [PAST, 'kv'], PRESENT, { axis: 1 }),
      { operator: 'Split', inputs: [PRESENT, 'halves'], outputs: ['keys', 'values'], attributes: { axis: 2 } },
      ...MASK,
      nodeOf('Reshape', ['q.packed', 'by.head'], 'q'),
      nodeOf('Transpose', ['keys'], 'keys.turned', { perm: [0, 2, 1] }),
      nodeOf('MatMul', ['q', 'keys.turned'], 'products'),
      nodeOf('Mul', ['products', 'scale'], 'scores'),
      nodeOf('Shape', ['scores'], 'scores.shape'),
      nodeOf('Unsqueeze', ['total', 'axis.zero'], 'total.list'),
      nodeOf('Concat', ['ids.shape', 'heads', 'total.list'], 'apart', { axis: 0 }),
      nodeOf('Reshape', ['scores', 'apart'], 'scores.apart'),
      nodeOf('Where', ['seen', 'scores.apart', 'low'], 'masked'),
      nodeOf('Softmax', ['masked'], 'weights.apart', { axis: -1 }),
      nodeOf('Reshape', ['weights.apart', 'scores.shape'], 'weights'),
      nodeOf('MatMul', ['weights', 'values'], 'attended'),
      nodeOf('Reshape', ['attended', 'packed'], 'attended.packed'),
      nodeOf('MatMul', ['attended.packed', 'o.weight'], 'projected'),
      nodeOf('Add', ['x', 'projected'], 'y'),
      nodeOf('MatMul', ['y', 'head.weight'], 'logits'),
    ],
    inputs: [
      { name: 'input_ids', element: ELEMENT.int64, dims: ['batch', 'new'] },
      { name: PAST, dims: ['batch', 'past', 2 * DIM] },
    ],
    outputs: [
      { name: 'logits', dims: ['batch', 'new', BESIDE_VOCABULARY] },
      { name: PRESENT, dims: ['batch', 'total', 2 * DIM] },
    ],
    constants: [
      weights('embed', [BESIDE_VOCABULARY, WIDTH], 1),
      weights('q.weight', [WIDTH, WIDTH], 2),
      weights('kv.weight', [WIDTH, 2 * DIM], 3),
      weights('o.weight', [WIDTH, WIDTH], 4),
      weights('head.weight', [WIDTH, BESIDE_VOCABULARY], 5),
      floatsOf('scale', [], [0.35]),
      floatsOf('low', [], [-1e9]),
      integersOf('zero', [], [0]),
      integersOf('one', [], [1]),
      integersOf('axis.zero', [1], [0]),
      integersOf('axis.one', [1], [1]),
      integersOf('axes', [2], [0, 2]),
      integersOf('heads', [1], [HEADS]),
      integersOf('halves', [2], [DIM, DIM]),
      integersOf('by.head', [3], [0, -1, DIM]),
      integersOf('packed', [3], [0, -1, WIDTH]),
    ],
  })
}
