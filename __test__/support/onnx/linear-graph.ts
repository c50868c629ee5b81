// The hybrid decoder of small whole numbers with layers that kvtide rewrites: all backends run it. All of its sums are exact, however its tokens are divided into calls.
//
//     layer 0   short convolution                  conv
//     layer 1   attention, convolution             past_key_values.1.key, .value, conv
//     layer 2   linear attention of two heads      recurrent
//     layer 3   convolution, linear attention      conv, ssm
//
// Attention with queries of zeros gives the mean of all values, which times their number is a whole number again.
import {
  Building,
  CONVOLUTIONS,
  convolutions,
  embedded,
  embeddedTokens,
  followingBy,
  greedyBy,
  type HybridForm,
  type Shapes,
  type Stepping,
  tokenOf,
  UNDERSCORES,
  WIDTH,
  withHead,
  zeros,
} from './hybrid-graph.js'
import { ELEMENT } from './model-bytes.js'

/** Heads of the linear attentions. */
const HEADS: Readonly<Record<number, number>> = { 2: 2, 3: 1 }
const SHAPES: Shapes = { ...CONVOLUTIONS, '2.recurrent': [2, WIDTH / 2, WIDTH / 2], '3.ssm': [1, WIDTH, WIDTH] }

/** Keys and values of a token, made of its numbers. */
const KEY = { factor: 2, added: 1, modulus: 5 }
const VALUE = { factor: 3, added: 2, modulus: 7 }
const made = (value: number, { factor, added, modulus }: typeof KEY): number => (value * factor + added) % modulus

/** The linear hybrid that is being put together. */
class Linear extends Building {
  made(x: string, { factor, added, modulus }: typeof KEY): string {
    return this.mod(this.add('Add', [this.add('Mul', [x, this.number(factor)]), this.number(added)]), modulus)
  }

  /** The sum of keys times values of all tokens so far, times the numbers of each token. */
  linear(x: string, layer: number, tensor: string): string {
    const heads = HEADS[layer] as number
    const [rows, last] = [`rows${layer}`, `last${layer}`]
    this.nodes.push({
      operator: 'LinearAttention',
      domain: 'com.microsoft',
      inputs: [x, this.made(x, KEY), this.made(x, VALUE), this.past(layer, tensor)],
      outputs: [rows, last],
      attributes: { q_num_heads: heads, kv_num_heads: heads, update_rule: 'linear', scale: { float: 1 } },
    })
    this.present(layer, tensor, last)
    return rows
  }

  /** The sum of the values of all tokens so far: `[1, tokens, width]` to the same. */
  summed(x: string, layer: number): string {
    this.inputs.push({ name: 'attention_mask', element: ELEMENT.int64, dims: ['batch', 'total'] })
    const [keys, values] = ['key', 'value'].map(side => {
      const [past, present] = [`past_key_values.${layer}.${side}`, `present.${layer}.${side}`]
      this.inputs.push({ name: past, dims: ['batch', 1, 'past', WIDTH] })
      this.outputs.push({ name: present, dims: ['batch', 1, 'total', WIDTH] })
      return { past, present }
    }) as [{ past: string; present: string }, { past: string; present: string }]
    const counted = this.add('ReduceSum', ['attention_mask', this.integers(1)], { keepdims: 0 })
    const lengths = this.add('Cast', [this.add('Sub', [counted, this.integers(1)])], { to: ELEMENT.int32 })
    const total = this.add('Gather', [this.add('Shape', ['attention_mask']), this.index(1)])
    const nothing = this.add('Mul', [x, this.number(0)])
    this.nodes.push({
      operator: 'GroupQueryAttention',
      domain: 'com.microsoft',
      inputs: [
        nothing,
        x,
        this.made(x, VALUE),
        keys.past,
        values.past,
        lengths,
        this.add('Cast', [total], { to: ELEMENT.int32 }),
      ],
      outputs: ['mean', keys.present, values.present],
      attributes: { num_heads: 1, kv_num_heads: 1, scale: { float: 1 } },
    })
    const places = this.add('Cast', ['position_ids'], { to: ELEMENT.float })
    const count = this.add('Unsqueeze', [this.add('Add', [places, this.number(1)]), this.integers(2)])
    return this.add('Round', [this.add('Mul', ['mean', count])])
  }
}

/** The bytes of the graph. */
export function linearGraph(form: HybridForm = {}): Buffer {
  const { names = UNDERSCORES, isHalf = false, hasAttention = true } = form
  const at = new Linear(names, tensor => isHalf && tensor === 'conv', SHAPES)
  const x0 = embeddedTokens(at, hasAttention)
  const x1 = at.mod(at.add('Add', [x0, at.convolution(x0, 0)]), 13)
  const seen = hasAttention ? at.add('Add', [at.convolution(x1, 1), at.summed(x1, 1)]) : at.convolution(x1, 1)
  const x2 = at.mod(at.add('Add', [x1, seen]), 11)
  const x3 = at.mod(at.add('Add', [x2, at.mod(at.linear(x2, 2, 'recurrent'), 97)]), 7)
  return withHead(at, at.add('Add', [at.convolution(x3, 3), at.mod(at.linear(x3, 3, 'ssm'), 89)]), form)
}

const stepping: Stepping = (hasAttention = true) => {
  const convolved = convolutions()
  const states: Record<number, number[][]> = {}
  const linear = (x: readonly number[], layer: number): number[] => {
    const state = (states[layer] ??= Array.from({ length: WIDTH }, zeros))
    const dim = WIDTH / (HEADS[layer] as number)
    const [keys, values] = [x.map(value => made(value, KEY)), x.map(value => made(value, VALUE))]
    return x.map((_, column) => {
      const first = Math.floor(column / dim) * dim
      let sum = 0
      for (let row = first; row < first + dim; row++) {
        const of = state[row] as number[]
        of[column] = (of[column] as number) + (keys[row] as number) * (values[column] as number)
        sum += of[column] * (x[row] as number)
      }
      return sum
    })
  }
  const sums = zeros()
  return id => {
    const x0 = embedded(id)
    const c0 = convolved(x0, 0)
    const x1 = x0.map((value, at) => (value + (c0[at] as number)) % 13)
    const c1 = convolved(x1, 1)
    for (const [at, value] of x1.entries()) sums[at] = (sums[at] as number) + made(value, VALUE)
    const x2 = x1.map((value, at) => (value + (c1[at] as number) + (hasAttention ? (sums[at] as number) : 0)) % 11)
    const l2 = linear(x2, 2)
    const x3 = x2.map((value, at) => (value + ((l2[at] as number) % 97)) % 7)
    const [c3, l3] = [convolved(x3, 3), linear(x3, 3)]
    return tokenOf(c3.map((value, at) => value + ((l3[at] as number) % 89)))
  }
}

export const linearFollowing: ReturnType<typeof followingBy> = followingBy(stepping)
export const linearGreedy: ReturnType<typeof greedyBy> = greedyBy(stepping)
