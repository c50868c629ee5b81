// A hybrid decoder of small whole numbers, as an ONNX graph and as plain code: all of its sums are exact, however its tokens are divided into calls.
//
//     layer 0   short convolution         past_conv.0
//     layer 1   attention, convolution    past_key_values.1.key, .value, past_conv.1
//     layer 2   linear recurrence         past_recurrent.2
//     layer 3   convolution, recurrence   past_conv.3, past_ssm.3
//
// Each recurrence is a running hash of all numbers before it, so a state of other tokens shows up in every later row of logits.
import type { ModelDescription, StateTensor } from '../../../index.js'
import {
  type ConstantOf,
  ELEMENT,
  floatsOf,
  type GraphOf,
  integersOf,
  modelBytes,
  nodeOf,
  type NodeOf,
  type PortOf,
} from './model-bytes.js'

/** Elements of a token in each layer. */
export const WIDTH = 8
export const VOCABULARY = 24
/** A token whose numbers are NaN. */
export const POISON: number = VOCABULARY - 1
const MODULUS = 1009

/** The numbers of a token before the first layer. */
export const embedded = (id: number): number[] =>
  Array.from({ length: WIDTH }, (_, at) => (id === POISON ? Number.NaN : (id * 7 + at * 5 + ((id * at) % 3)) % 11))

/** The weights of a convolution, the oldest column first. */
const weights = (layer: number, columns: number): number[][] =>
  Array.from({ length: WIDTH }, (_, at) =>
    Array.from({ length: columns + 1 }, (__, column) => 1 + ((at + layer + 2 * column) % 3)),
  )

/** The number of columns that the convolution of a layer keeps. */
const COLUMNS: Readonly<Record<number, number>> = { 0: 2, 1: 3, 3: 1 }
const KERNELS: Readonly<Record<string, number[][]>> = Object.fromEntries(
  Object.entries(COLUMNS).map(([layer, columns]) => [layer, weights(Number(layer), columns)]),
)
/** The factors of the recurrences, which make them hashes. */
const FACTOR: Readonly<Record<number, number>> = { 2: 3, 3: 5 }
/** The factor of each element in the hash that is the next token. */
const READ = Array.from({ length: WIDTH }, (_, at) => 1 + ((at * at) % 7))

/** Names of pasts and presents for a layer and a tensor. */
export type HybridNames = (layer: number, tensor: string) => readonly [past: string, present: string]

/** The form that transformers.js's exports have. */
export const UNDERSCORES: HybridNames = (layer, tensor) => [`past_${tensor}.${layer}`, `present_${tensor}.${layer}`]
/** The form that mobius has. */
export const STATES: HybridNames = (layer, tensor) => [
  `past_key_values.${layer}.${tensor}_state`,
  `present.${layer}.${tensor}_state`,
]
/** The form that the builder of onnxruntime-genai has. */
export const BUILDER: HybridNames = (layer, tensor) => [`past.${layer}.${tensor}`, `present.${layer}.${tensor}`]

export interface HybridForm {
  readonly names?: HybridNames
  /** True for states in half floats; in the form that kvtide rewrites, for those of convolutions. */
  readonly isHalf?: boolean
  /** True for a head that gives the logits of the last token only. */
  readonly isPruned?: boolean
  /** False for a model without attention. */
  readonly hasAttention?: boolean
  /** About one token in so many is the next one instead. */
  readonly slip?: number
  /** Changes the graph before it is written. */
  readonly change?: (graph: GraphOf) => GraphOf
}

/** The dimensions of states without the batch, by layer and tensor. */
export type Shapes = Readonly<Record<string, readonly number[]>>

/** The states of convolutions. */
export const CONVOLUTIONS: Shapes = Object.fromEntries(
  Object.entries(COLUMNS).map(([layer, columns]) => [`${layer}.conv`, [WIDTH, columns]]),
)
const SHAPES: Shapes = { ...CONVOLUTIONS, '2.recurrent': [WIDTH], '3.ssm': [2, WIDTH / 2] }

/** The layers of a cache for the graph. */
export function hybridLayers({ isHalf = false, hasAttention = true }: HybridForm = {}): ModelDescription['layers'] {
  const tensors = (layer: number): StateTensor[] =>
    Object.entries(SHAPES)
      .filter(([name]) => name.startsWith(`${layer}.`))
      .map(([name, shape]) => ({ name: name.slice(2), shape, dtype: isHalf ? 'f16' : 'f32' }))
  return [0, 1, 2, 3].map(layer =>
    layer === 1 && hasAttention
      ? { kind: 'full', numKvHeads: 1, headDim: WIDTH, tensors: tensors(layer) }
      : { kind: 'state', tensors: tensors(layer) },
  )
}

/** A graph that is being put together. */
export class Building {
  readonly nodes: NodeOf[] = []
  readonly constants: ConstantOf[] = []
  readonly inputs: PortOf[] = []
  readonly outputs: PortOf[] = []
  readonly #form: Required<Pick<HybridForm, 'names'>> & { readonly isHalf: (tensor: string) => boolean }
  readonly #shapes: Shapes
  #count = 0

  constructor(names: HybridNames, isHalf: (tensor: string) => boolean, shapes: Shapes) {
    this.#form = { names, isHalf }
    this.#shapes = shapes
  }

  add(operator: string, inputs: readonly string[], attributes?: NodeOf['attributes']): string {
    const output = `t${(this.#count += 1)}`
    this.nodes.push(nodeOf(operator, inputs, output, attributes))
    return output
  }

  floats(dims: readonly number[], values: readonly number[]): string {
    const name = `c${(this.#count += 1)}`
    this.constants.push(floatsOf(name, dims, values))
    return name
  }

  integers(...values: readonly number[]): string {
    const name = `c${(this.#count += 1)}`
    this.constants.push(integersOf(name, [values.length], values))
    return name
  }

  /** A number that chooses along an axis, which then is gone. */
  index(value: number): string {
    const name = `c${(this.#count += 1)}`
    this.constants.push(integersOf(name, [], [value]))
    return name
  }

  number(value: number): string {
    return this.floats([], [value])
  }

  mod(of: string, by: number): string {
    return this.add('Mod', [of, this.number(by)], { fmod: 1 })
  }

  /** Adds 1 to every multiple of a number. */
  slipped(of: string, slip: number): string {
    const isMultiple = this.add('Equal', [this.mod(of, slip), this.number(0)])
    return this.add('Add', [of, this.add('Cast', [isMultiple], { to: ELEMENT.float })])
  }

  /** The state of a layer in floats. */
  past(layer: number, tensor: string): string {
    const [name] = this.#form.names(layer, tensor)
    const isHalf = this.#form.isHalf(tensor)
    this.inputs.push({
      name,
      element: isHalf ? ELEMENT.half : ELEMENT.float,
      dims: ['batch', ...this.shape(layer, tensor)],
    })
    return isHalf ? this.add('Cast', [name], { to: ELEMENT.float }) : name
  }

  present(layer: number, tensor: string, value: string): void {
    const [, name] = this.#form.names(layer, tensor)
    const isHalf = this.#form.isHalf(tensor)
    const element = isHalf ? ELEMENT.half : ELEMENT.float
    this.outputs.push({ name, element, dims: ['batch', ...this.shape(layer, tensor)] })
    if (isHalf) this.nodes.push(nodeOf('Cast', [value], name, { to: element }))
    else this.nodes.push(nodeOf('Identity', [value], name))
  }

  shape(layer: number, tensor: string): readonly number[] {
    return this.#shapes[`${layer}.${tensor}`] as readonly number[]
  }

  /** A depthwise convolution over the columns before: `[1, tokens, width]` to the same. */
  convolution(x: string, layer: number): string {
    const columns = COLUMNS[layer] as number
    const turned = this.add('Transpose', [x], { perm: [0, 2, 1] })
    const all = this.add('Concat', [this.past(layer, 'conv'), turned], { axis: 2 })
    const [start, end, axis] = [-columns, 2 ** 31, 2].map(value => this.integers(value)) as [string, string, string]
    this.present(layer, 'conv', this.add('Slice', [all, start, end, axis]))
    const kernel = this.floats([WIDTH, 1, columns + 1], weights(layer, columns).flat())
    return this.add('Transpose', [this.add('Conv', [all, kernel], { group: WIDTH })], { perm: [0, 2, 1] })
  }

  /** A recurrence over the tokens: `[1, tokens, width]` to the same. */
  recurrence(x: string, layer: number, tensor: string): string {
    const flat = this.add('Reshape', [this.past(layer, tensor), this.integers(1, WIDTH)])
    const [last, rows] = [`last${layer}`, `rows${layer}`]
    const body: GraphOf = {
      nodes: [
        nodeOf('Mul', ['h', 'factor'], 'grown'),
        nodeOf('Add', ['grown', 'x'], 'sum'),
        nodeOf('Mod', ['sum', 'modulus'], 'next', { fmod: 1 }),
        nodeOf('Identity', ['next'], 'row'),
      ],
      inputs: ['h', 'x'].map(name => ({ name, dims: [1, WIDTH] })),
      outputs: ['next', 'row'].map(name => ({ name, dims: [1, WIDTH] })),
      constants: [floatsOf('factor', [], [FACTOR[layer] as number]), floatsOf('modulus', [], [MODULUS])],
    }
    this.nodes.push({
      operator: 'Scan',
      inputs: [flat, x],
      outputs: [last, rows],
      attributes: { body, num_scan_inputs: 1, scan_input_axes: [1], scan_output_axes: [1] },
    })
    const shape = this.integers(1, ...this.shape(layer, tensor))
    this.present(layer, tensor, this.add('Reshape', [last, shape]))
    return rows
  }

  /** The sum of keys times values of all tokens so far: `[1, tokens, width]` to the same. */
  attention(x: string, layer: number): string {
    const sides = {
      key: x,
      value: this.mod(this.add('Add', [this.add('Mul', [x, this.number(3)]), this.number(1)]), 7),
    }
    const [keys, values] = Object.entries(sides).map(([side, rows]) => {
      const [past, present] = [`past_key_values.${layer}.${side}`, `present.${layer}.${side}`]
      this.inputs.push({ name: past, dims: ['batch', 1, 'past', WIDTH] })
      this.outputs.push({ name: present, dims: ['batch', 1, 'total', WIDTH] })
      const own = this.add('Unsqueeze', [rows, this.integers(1)])
      this.nodes.push(nodeOf('Concat', [past, own], present, { axis: 2 }))
      return this.add('Squeeze', [present, this.integers(1)])
    }) as [string, string]
    const total = this.add('Gather', [this.add('Shape', [keys]), this.integers(1)])
    const scalar = this.add('Squeeze', [total, this.integers(0)])
    this.constants.push(integersOf('zero', [], [0]), integersOf('one', [], [1]))
    const places = this.add('Unsqueeze', [this.add('Range', ['zero', scalar, 'one']), this.integers(0)])
    const own = this.add('Unsqueeze', [this.add('Squeeze', ['position_ids', this.integers(0)]), this.integers(1)])
    const seen = this.add('Cast', [this.add('LessOrEqual', [places, own])], { to: ELEMENT.float })
    return this.add('MatMul', [seen, this.add('Mul', [keys, values])])
  }
}

/** The inputs of a graph that is being put together, and the numbers of its tokens. */
export function embeddedTokens(at: Building, hasPositions: boolean): string {
  at.inputs.push({ name: 'input_ids', element: ELEMENT.int64, dims: ['batch', 'tokens'] })
  if (hasPositions) at.inputs.push({ name: 'position_ids', element: ELEMENT.int64, dims: ['batch', 'tokens'] })
  const table = Array.from({ length: VOCABULARY }, (_, id) => embedded(id)).flat()
  return at.add('Gather', [at.floats([VOCABULARY, WIDTH], table), 'input_ids'], { axis: 0 })
}

/** Adds a head, whose most probable token is a sum of the numbers of the last layer, and returns the bytes of the graph. */
export function withHead(
  at: Building,
  last: string,
  { slip, isPruned = false, change = graph => graph }: HybridForm,
): Buffer {
  const sum = at.add('MatMul', [last, at.floats([WIDTH, 1], READ)])
  const all = at.mod(slip === undefined ? sum : at.slipped(sum, slip), VOCABULARY - 1)
  const ids = at.floats(
    [VOCABULARY],
    Array.from({ length: VOCABULARY }, (_, id) => id),
  )
  const each = at.add('Cast', [at.add('Equal', [all, ids])], { to: ELEMENT.float })
  const row = isPruned ? at.add('Slice', [each, at.integers(-1), at.integers(2 ** 31), at.integers(1)]) : each
  const same = Array.from({ length: VOCABULARY ** 2 }, (_, place) => (place % (VOCABULARY + 1) === 0 ? 1 : 0))
  at.nodes.push(nodeOf('MatMul', [row, at.floats([VOCABULARY, VOCABULARY], same)], 'logits'))
  at.outputs.push({ name: 'logits', dims: ['batch', isPruned ? 1 : 'tokens', VOCABULARY] })
  const { nodes, inputs, outputs, constants } = at
  return modelBytes(change({ nodes, inputs, outputs, constants }))
}

/** The bytes of the graph. */
export function hybridGraph(form: HybridForm = {}): Buffer {
  const { names = UNDERSCORES, isHalf = false, hasAttention = true } = form
  const at = new Building(names, () => isHalf, SHAPES)
  const x0 = embeddedTokens(at, hasAttention)
  const x1 = at.mod(at.add('Add', [x0, at.convolution(x0, 0)]), 13)
  const seen = hasAttention ? at.add('Add', [at.convolution(x1, 1), at.attention(x1, 1)]) : at.convolution(x1, 1)
  const x2 = at.mod(at.add('Add', [x1, seen]), 17)
  const x3 = at.mod(at.add('Add', [x2, at.recurrence(x2, 2, 'recurrent')]), 19)
  return withHead(at, at.add('Add', [at.convolution(x3, 3), at.recurrence(x3, 3, 'ssm')]), form)
}

export const zeros = (): number[] => Array.from({ length: WIDTH }, () => 0)

/** Convolutions in plain code, token by token. */
export function convolutions(): (x: readonly number[], layer: number) => number[] {
  const columns: Record<number, number[][]> = {}
  return (x, layer) => {
    const count = COLUMNS[layer] as number
    const before = (columns[layer] ??= Array.from({ length: count }, zeros))
    const all = [...before, [...x]]
    columns[layer] = all.slice(1)
    return x.map((_, at) =>
      all.reduce((sum, column, place) => sum + (column[at] as number) * (KERNELS[layer]?.[at]?.[place] as number), 0),
    )
  }
}

/** The token that the numbers of the last layer stand for. */
export const tokenOf = (last: readonly number[]): number =>
  last.reduce((total, value, at) => total + value * (READ[at] as number), 0) % (VOCABULARY - 1)

/** The decoder in plain code: takes token by token, and returns the one that follows. */
export type Stepping = (hasAttention?: boolean) => (id: number) => number

/** Computes the model in plain code: takes the tokens of a sequence one by one, and gives the token that follows each. */
export const follower: Stepping = (hasAttention = true) => {
  const hashes: Record<number, number[]> = {}
  const convolved = convolutions()
  const recurring = (x: readonly number[], layer: number): number[] => {
    const before = (hashes[layer] ??= zeros())
    return (hashes[layer] = x.map(
      (value, at) => ((before[at] as number) * (FACTOR[layer] as number) + value) % MODULUS,
    ))
  }
  const attended = zeros()
  return id => {
    const x0 = embedded(id)
    const c0 = convolved(x0, 0)
    const x1 = x0.map((value, at) => (value + (c0[at] as number)) % 13)
    const c1 = convolved(x1, 1)
    for (const [at, value] of x1.entries()) attended[at] = (attended[at] as number) + value * ((value * 3 + 1) % 7)
    const x2 = x1.map((value, at) => (value + (c1[at] as number) + (hasAttention ? (attended[at] as number) : 0)) % 17)
    const h2 = recurring(x2, 2)
    const x3 = x2.map((value, at) => (value + (h2[at] as number)) % 19)
    const [c3, h3] = [convolved(x3, 3), recurring(x3, 3)]
    return tokenOf(c3.map((value, at) => value + (h3[at] as number)))
  }
}

/** The token that follows each of a list. O(tokens). */
export const followingBy =
  (steps: Stepping) =>
  (ids: readonly number[], hasAttention = true): number[] => {
    const next = steps(hasAttention)
    return ids.map(id => next(id))
  }

/** The greedy tokens behind a prompt. O(tokens). */
export const greedyBy =
  (steps: Stepping) =>
  (prompt: readonly number[], count: number, hasAttention = true): number[] => {
    const next = steps(hasAttention)
    let token = prompt.reduce((_, id) => next(id), 0)
    return Array.from({ length: count }, () => {
      const said = token
      token = next(said)
      return said
    })
  }

export const following: ReturnType<typeof followingBy> = followingBy(follower)
export const greedy: ReturnType<typeof greedyBy> = greedyBy(follower)
