import type { ExecutionContext } from 'ava'
import fc from 'fast-check'

import { Tensor, type CacheStats, type DType, type HostTensor, type TensorData } from '../../index.js'
import { bytes } from './tokens.js'

/** Sequences of operations for each property; `KVTIDE_CASES_JS` asks for more. */
const cases = Number(process.env['KVTIDE_CASES_JS'] ?? 400)

/** Checks a property with a seed that is printed; `KVTIDE_SEED` repeats a run. */
export function check<T>(t: ExecutionContext, arbitrary: fc.Arbitrary<T>, property: (value: T) => void): void {
  const seed = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
  t.log(`KVTIDE_SEED=${seed} KVTIDE_CASES_JS=${cases}`)
  fc.assert(fc.property(arbitrary, property), { seed, numRuns: cases })
  t.pass()
}

/** The dtypes that properties run in: bits are bits. */
export const DTYPES = ['f32', 'f16'] as const

/** The shape of K and V, whose tokens each have a number, and where they are. */
export interface Shape {
  readonly device: string
  readonly dtype: DType
  readonly batch: number
  readonly heads: number
  readonly dim: number
}

/** Small shapes on a device. */
export const shapesOn = (device: string): fc.Arbitrary<Shape> => fc.record({
  device: fc.constant(device),
  dtype: fc.constantFrom(...DTYPES),
  batch: fc.integer({ min: 1, max: 2 }),
  heads: fc.integer({ min: 1, max: 2 }),
  dim: fc.integer({ min: 1, max: 3 }),
})

/** Numbers tokens from 1 on, each used once. */
export class Numbering {
  #last = 0

  take(count: number): number[] {
    return Array.from({ length: count }, () => (this.#last += 1))
  }
}

/** Every bit of one element, which follows from where it is: NaNs and subnormals come up too. */
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

/** The same as a tensor to append, which lies where the cache does. */
export function source(shape: Shape, tokens: readonly number[], part: number): Tensor {
  const { device, dtype, batch, heads, dim } = shape
  return Tensor.from(expected(shape, tokens, part), [batch, heads, tokens.length, dim], { dtype, device })
}

/** The same in memory of the host, which any cache takes. */
export function hosted(shape: Shape, tokens: readonly number[], part: number): HostTensor {
  const { dtype, batch, heads, dim } = shape
  return { data: expected(shape, tokens, part), shape: [batch, heads, tokens.length, dim], dtype }
}

/** Throws unless a view shows these tokens, bit for bit. */
export function shows(view: Tensor, shape: Shape, tokens: readonly number[], part: number): void {
  const wanted = expected(shape, tokens, part)
  const found = bytes(view)
  if (view.shape[2] !== tokens.length || Buffer.compare(found, new Uint8Array(wanted.buffer)) !== 0) {
    throw new Error(`part ${part} shows [${view.shape.join(', ')}] that are not the tokens ${tokens.join(' ')}`)
  }
}

/** What a view showed when it was made: later it shows the same, or is refused as stale. */
export class Kept {
  readonly #views: { view: Tensor; tokens: readonly number[]; part: number }[] = []
  readonly #shape: Shape

  constructor(shape: Shape) {
    this.#shape = shape
  }

  /** Checks new views of the same tokens, K first, and keeps them, or disposes of them. */
  add(views: readonly Tensor[], tokens: readonly number[], keep: boolean): void {
    for (const [part, view] of views.entries()) {
      if (view.isStale) throw new Error('a new view is stale')
      shows(view, this.#shape, tokens, part)
      if (keep) this.#views.push({ view, tokens: [...tokens], part })
      else view.dispose()
    }
  }

  /** Disposes of all that is kept. */
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

/** Throws unless a cache of which nothing is kept has the memory of its buffer, and no more: whether garbage was collected or not. */
export function ownsItsBuffer({ usedBytes, heldBytes, bufferBytes }: CacheStats): void {
  if (usedBytes !== bufferBytes || heldBytes !== 0) throw new Error(`${usedBytes} bytes used, ${heldBytes} held, ${bufferBytes} in the buffer`)
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

/** A path down the draft, as far as the choices lead. */
export function route({ nodes }: { readonly nodes: readonly { readonly parent: number }[] }, choices: readonly number[]): number[] {
  const path: number[] = []
  for (const choice of choices) {
    const children = nodes.flatMap(({ parent }, node) => (parent === (path.at(-1) ?? -1) ? [node] : []))
    const next = children[choice % Math.max(children.length, 1)]
    if (next === undefined) break
    path.push(next)
  }
  return path
}
