// A decoder of one layer with `com.microsoft.MultiHeadAttention`, small enough to be written by a test.
//
//     input_ids -> Gather -> q, k, v -> MultiHeadAttention over the past -> rows that are kept -> logits
import { ELEMENT, floatsOf, type GraphOf, integersOf, modelBytes, type NodeOf, nodeOf } from './model-bytes.js'

const WIDTH = 16
const HEADS = 2
const DIM = WIDTH / HEADS
/** The size of its vocabulary, unless a test asks for another one. */
export const SMALL_VOCABULARY = 24

/** A failure that the runtime finds only when it computes: of every token, of several tokens in one call, or of tokens behind more than `behind` others. */
type Failure = 'always' | 'several' | { readonly behind: number }

/** A form of the decoder. */
export interface SmallDecoder {
  readonly fails?: Failure
  /** True if the attention takes queries, keys and values in one tensor, `[batch, tokens, heads, 3, dim]`. */
  readonly isPacked?: boolean
  /** The input with the number of rows of logits that are wanted, counted from the last. */
  readonly kept?: { readonly name: string; readonly element: number; readonly dims: readonly number[] }
  readonly vocabulary?: number
}

/** Numbers between -1 and 1 that look random. */
const weights = (name: string, dims: readonly number[], seed: number): ReturnType<typeof floatsOf> =>
  floatsOf(
    name,
    dims,
    Array.from({ length: dims.reduce((product, size) => product * size, 1) }, (_, at) => Math.sin(at * at + seed)),
  )

const past = (side: string): string => `past_key_values.0.${side}`

/** Nodes between the rows and the head. */
function behindRows(fails: Failure | undefined): NodeOf[] {
  if (typeof fails !== 'object') return [nodeOf('Identity', ['rows'], 'last')]
  return [
    nodeOf('Shape', [past('key')], 'past.shape'),
    nodeOf('Gather', ['past.shape', 'two'], 'past.length'),
    nodeOf('Gather', ['table', 'past.length'], 'past.row'),
    nodeOf('Add', ['rows', 'past.row'], 'last'),
  ]
}

/** The bytes of the decoder. */
export function smallDecoder({
  isPacked = false,
  kept,
  fails,
  vocabulary = SMALL_VOCABULARY,
}: SmallDecoder = {}): Buffer {
  const sides = ['key', 'value'] as const
  const packed = [
    nodeOf('MatMul', ['x', 'qkv.weight'], 'qkv.flat'),
    nodeOf('Reshape', ['qkv.flat', 'qkv.shape'], 'qkv'),
  ]
  const apart = ['q', 'k', 'v'].map(name => nodeOf('MatMul', ['x', `${name}.weight`], name))
  const given = isPacked ? ['qkv', '', ''] : ['q', 'k', 'v']
  const graph: GraphOf = {
    nodes: [
      fails === 'always' ? nodeOf('Add', ['input_ids', 'far'], 'ids') : nodeOf('Identity', ['input_ids'], 'ids'),
      nodeOf('Gather', ['embed.weight', 'ids'], 'embeds'),
      fails === 'several' ? nodeOf('Reshape', ['embeds', 'single'], 'x') : nodeOf('Identity', ['embeds'], 'x'),
      ...(isPacked ? packed : apart),
      {
        operator: 'MultiHeadAttention',
        domain: 'com.microsoft',
        inputs: [...given, '', '', '', ...sides.map(past)],
        outputs: ['attended', ...sides.map(side => `present.0.${side}`)],
        attributes: { num_heads: HEADS, unidirectional: 1 },
      },
      nodeOf('Add', ['x', 'attended'], 'y'),
      ...(kept === undefined
        ? [nodeOf('Identity', ['y'], 'rows')]
        : [
            nodeOf('Neg', [kept.name], 'negative'),
            nodeOf('Cast', ['negative'], 'whole', { to: ELEMENT.int64 }),
            nodeOf('Reshape', ['whole', 'one'], 'from'),
            nodeOf('Slice', ['y', 'from', 'end', 'one'], 'rows'),
          ]),
      ...behindRows(fails),
      nodeOf('MatMul', ['last', 'head.weight'], 'logits'),
    ],
    inputs: [
      { name: 'input_ids', element: ELEMENT.int64, dims: ['batch', 'new'] },
      ...sides.map(side => ({ name: past(side), dims: ['batch', HEADS, 'past', DIM] })),
      ...(kept === undefined ? [] : [kept]),
    ],
    outputs: [
      { name: 'logits', dims: ['batch', 'rows', vocabulary] },
      ...sides.map(side => ({ name: `present.0.${side}`, dims: ['batch', HEADS, 'total', DIM] })),
    ],
    constants: [
      weights('embed.weight', [vocabulary, WIDTH], 1),
      weights('head.weight', [WIDTH, vocabulary], 2),
      ...(isPacked
        ? [weights('qkv.weight', [WIDTH, 3 * WIDTH], 3), integersOf('qkv.shape', [5], [0, -1, HEADS, 3, DIM])]
        : ['q', 'k', 'v'].map((name, at) => weights(`${name}.weight`, [WIDTH, WIDTH], 3 + at))),
      ...(kept === undefined ? [] : [integersOf('one', [1], [1]), integersOf('end', [1], [2 ** 40])]),
      ...(typeof fails === 'object'
        ? [weights('table', [fails.behind + 1, WIDTH], 9), integersOf('two', [], [2])]
        : [integersOf('single', [3], [1, 1, WIDTH]), integersOf('far', [], [vocabulary])]),
    ],
  }
  return modelBytes(graph)
}
