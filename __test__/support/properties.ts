import fc from 'fast-check'

import { Tensor, type CacheStats, type DType, type HostTensor, type TensorData } from '../../index.js'
import { bytes } from './tokens.js'

export { check } from './seeded.js'

/** The dtypes of property tests. */
export const DTYPES = ['f32', 'f16'] as const

/** The shape and device of K and V. Each token has a number. */
export interface Shape {
  readonly device: string
  readonly dtype: DType
  readonly batch: number
  readonly heads: number
  readonly dim: number
}

/** Small shapes on a device. */
export const shapesOn = (device: string): fc.Arbitrary<Shape> =>
  fc.record({
    device: fc.constant(device),
    dtype: fc.constantFrom(...DTYPES),
    batch: fc.integer({ min: 1, max: 2 }),
    heads: fc.integer({ min: 1, max: 2 }),
    dim: fc.integer({ min: 1, max: 3 }),
  })

/** Gives tokens numbers from 1 on, each used once. */
export class Numbering {
  #last = 0

  take(count: number): number[] {
    return Array.from({ length: count }, () => (this.#last += 1))
  }
}

/** All bits of one element, derived from its place: NaNs and subnormals occur too. */
function element(token: number, part: number, row: number, place: number): number {
  let mixed = (token * 0x9e3779b1) ^ (part * 0x85ebca6b) ^ (row * 0xc2b2ae35) ^ (place * 0x27d4eb2f)
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x2c1b3c6d)
  return (mixed ^ (mixed >>> 13)) >>> 0
}

/** The elements of K (part 0) or V (part 1) of these tokens, `[batch, heads, tokens, dim]`. */
export function expected(shape: Shape, tokens: readonly number[], part: number): TensorData {
  const { dtype, batch, heads, dim } = shape
  const length = batch * heads * tokens.length * dim
  const bits = dtype === 'f32' ? new Uint32Array(length) : new Uint16Array(length)
  let at = 0
  for (let row = 0; row < batch * heads; row++) {
    for (const token of tokens) {
      for (let place = 0; place < dim; place++) bits[at++] = element(token, part, row, place)
    }
  }
  return dtype === 'f32' ? new Float32Array(bits.buffer) : (bits as Uint16Array)
}

/** The same as a tensor to append, on the cache's device. */
export function source(shape: Shape, tokens: readonly number[], part: number): Tensor {
  const { device, dtype, batch, heads, dim } = shape
  return Tensor.from(expected(shape, tokens, part), [batch, heads, tokens.length, dim], { dtype, device })
}

/** The same in host memory, which any cache accepts. */
export function hosted(shape: Shape, tokens: readonly number[], part: number): HostTensor {
  const { dtype, batch, heads, dim } = shape
  return { data: expected(shape, tokens, part), shape: [batch, heads, tokens.length, dim], dtype }
}

/** Throws unless a view contains these tokens, bit for bit. */
export function shows(view: Tensor, shape: Shape, tokens: readonly number[], part: number): void {
  const wanted = expected(shape, tokens, part)
  const found = bytes(view)
  if (view.shape[2] !== tokens.length || Buffer.compare(found, new Uint8Array(wanted.buffer)) !== 0) {
    throw new Error(`part ${part} shows [${view.shape.join(', ')}] that are not the tokens ${tokens.join(' ')}`)
  }
}

/** The content of a view when it was made. Later the view must have the same content, or be refused as stale. */
export class Kept {
  readonly #views: { view: Tensor; tokens: readonly number[]; part: number }[] = []
  readonly #shape: Shape

  constructor(shape: Shape) {
    this.#shape = shape
  }

  /** Checks new views of the same tokens, K first, and then keeps them or disposes of them. */
  add(views: readonly Tensor[], tokens: readonly number[], keep: boolean): void {
    for (const [part, view] of views.entries()) {
      if (view.isStale) throw new Error('a new view is stale')
      shows(view, this.#shape, tokens, part)
      if (keep) this.#views.push({ view, tokens: [...tokens], part })
      else view.dispose()
    }
  }

  /** Disposes of all kept views. */
  end(): void {
    for (const { view } of this.#views.splice(0)) view.dispose()
  }

  check(): void {
    for (const { view, tokens, part } of this.#views) {
      const { isStale } = view
      try {
        shows(view, this.#shape, tokens, part)
      } catch (error) {
        if (!isStale || (error as { code?: string }).code !== 'STALE_VIEW') throw error
      }
    }
  }
}

/** Throws unless a cache without kept views uses exactly the memory of its buffer, whether garbage was collected or not. */
export function ownsItsBuffer({ usedBytes, heldBytes, bufferBytes }: CacheStats): void {
  if (usedBytes !== bufferBytes || heldBytes !== 0)
    throw new Error(`${usedBytes} bytes used, ${heldBytes} held, ${bufferBytes} in the buffer`)
}

/** Throws unless `call` is refused with `code`. */
export function refused(code: string, call: () => unknown): void {
  try {
    call()
  } catch (error) {
    if ((error as { code?: string }).code === code) return
    throw error
  }
  throw new Error(`not refused with ${code}`)
}

/** Throws unless both are the same. */
export function same(what: string, found: unknown, wanted: unknown): void {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${what} is ${JSON.stringify(found)}, expected ${JSON.stringify(wanted)}`)
  }
}

/** A path down the draft, as long as the choices lead to a child. */
export function route(
  { nodes }: { readonly nodes: readonly { readonly parent: number }[] },
  choices: readonly number[],
): number[] {
  const path: number[] = []
  for (const choice of choices) {
    const children = nodes.flatMap(({ parent }, node) => (parent === (path.at(-1) ?? -1) ? [node] : []))
    const next = children[choice % Math.max(children.length, 1)]
    if (next === undefined) break
    path.push(next)
  }
  return path
}
