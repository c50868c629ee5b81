import type { HostTensor, PagedKvCache, Sequence, Snapshot, Transaction } from '../../index.js'

/** The form of a cache: its values are 32-bit floats. */
export interface Form {
  readonly device: string
  readonly capacity: number
  readonly blockSize: number
  readonly numLayers: number
  readonly numKvHeads: number
  readonly headDim: number
  /** The number of tokens that a token sees besides the first `sinks`; all if it is not set. */
  readonly window?: number
  readonly sinks?: number
}

function mix(one: number, other: number): number {
  let mixed = Math.imul(one ^ (one >>> 15), 0x2c1b3c6d) ^ Math.imul(other + 0x9e3779b9, 0x85ebca6b)
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0x297a2d39)
  return (mixed ^ (mixed >>> 16)) >>> 0
}

/** A token's state, given the state before it: all tokens so far determine its K and V, as in a model. */
export const follow = (before: number, id: number): number => mix(before, id + 1)

/** The state before the first token, by salt. */
export const rootOf = (salt: string): number => [...salt].reduce((root, letter) => mix(root, letter.charCodeAt(0)), 7)

/** The states of a prompt's tokens. */
export function followed(root: number, ids: readonly number[]): number[] {
  let last = root
  return ids.map(id => (last = follow(last, id)))
}

/** K (part 0) or V (part 1) of tokens in some layers, `[layers, heads, n, dim]`. */
export function valuesOf(
  { numKvHeads, headDim }: Form,
  layers: readonly number[],
  tokens: readonly number[],
  part: number,
): Float32Array {
  const bits = layers.flatMap(layer =>
    Array.from({ length: numKvHeads }, (_, head) =>
      tokens.flatMap(token =>
        Array.from({ length: headDim }, (__, place) => mix(token, 64 * layer + 16 * head + 2 * place + part)),
      ),
    ).flat(),
  )
  return new Float32Array(Uint32Array.from(bits).buffer)
}

/** The same as tensors to write, K and V. */
export function pairOf(
  form: Form,
  layers: readonly number[],
  tokens: readonly number[],
): [k: HostTensor, v: HostTensor] {
  const shape = [layers.length, form.numKvHeads, tokens.length, form.headDim]
  return [
    { data: valuesOf(form, layers, tokens, 0), shape },
    { data: valuesOf(form, layers, tokens, 1), shape },
  ]
}

/** A drafted token, and its parent in the draft; -1 stands for the token before the draft. */
export interface Node {
  readonly token: number
  readonly parent: number
}

/** An open transaction. */
export interface Draft {
  readonly open: Transaction
  readonly nodes: Node[]
}

/** The expected content of one sequence, token by token. */
export class Kept {
  readonly sequence: Sequence
  readonly root: number
  readonly tokens: number[]
  readonly drafts: Draft[] = []

  constructor(sequence: Sequence, root: number, tokens: readonly number[]) {
    this.sequence = sequence
    this.root = root
    this.tokens = [...tokens]
  }

  /** All tokens, drafted ones included. */
  get all(): number[] {
    return [...this.tokens, ...this.drafts.flatMap(({ nodes }) => nodes.map(({ token }) => token))]
  }

  /** The state before the next token. */
  get last(): number {
    return this.all.at(-1) ?? this.root
  }

  /** The state that the parent -1 refers to in the innermost draft. */
  get before(): number {
    const own = this.drafts.at(-1)?.nodes.length ?? 0
    return this.all.at(-1 - own) ?? this.root
  }

  /** Appends consecutive tokens: as drafted ones if a transaction is open. */
  add(tokens: readonly number[]): void {
    const nodes = this.drafts.at(-1)?.nodes
    if (nodes === undefined) this.tokens.push(...tokens)
    else for (const token of tokens) nodes.push({ token, parent: nodes.length - 1 })
  }

  /** Ends the innermost draft and keeps these tokens of it. */
  end(kept: readonly Node[]): void {
    this.drafts.pop()
    const nodes = this.drafts.at(-1)?.nodes
    if (nodes === undefined) this.tokens.push(...kept.map(({ token }) => token))
    else {
      const first = nodes.length
      nodes.push(...kept.map(({ token, parent }) => ({ token, parent: parent + first })))
    }
  }

  /** Throws unless the cache returns all of it, bit for bit, in each layer. */
  check(cache: PagedKvCache, form: Form): void {
    const { all, sequence, tokens } = this
    if (sequence.length !== all.length || sequence.committedLength !== tokens.length) {
      throw new Error(
        `sequence ${sequence.id} has ${sequence.committedLength} of ${sequence.length} tokens, expected ${tokens.length} of ${all.length}`,
      )
    }
    for (let layer = 0; layer < form.numLayers; layer++) {
      if (form.window === undefined) this.#gathered(cache, form, layer)
      else this.#visible(cache, form, layer, form.window, form.sinks ?? 0)
    }
  }

  #gathered(cache: PagedKvCache, form: Form, layer: number): void {
    const { k, v } = cache.gather(this.sequence, layer)
    for (const [part, found] of [k.toArray(), v.toArray()].entries()) {
      if (!isSame(found as Float32Array, valuesOf(form, [layer], this.all, part)))
        throw new Error(`sequence ${this.sequence.id} shows other tokens in layer ${layer}, part ${part}`)
    }
  }

  /** Checks the tokens that future tokens may see, one by one. */
  #visible(cache: PagedKvCache, form: Form, layer: number, window: number, sinks: number): void {
    const { all, tokens } = this
    for (const [pos, token] of all.entries()) {
      if (pos >= sinks && pos <= tokens.length - window) continue
      const { key, value } = cache.readKv(this.sequence, layer, pos)
      for (const [part, found] of [key, value].entries()) {
        if (!isSame(found as Float32Array, valuesOf(form, [layer], [token], part)))
          throw new Error(`sequence ${this.sequence.id} shows another token at ${pos} in layer ${layer}, part ${part}`)
      }
    }
  }
}

function isSame(found: Float32Array, wanted: Float32Array): boolean {
  return (
    Buffer.compare(new Uint8Array(found.buffer, found.byteOffset, found.byteLength), new Uint8Array(wanted.buffer)) ===
    0
  )
}

/** A snapshot, and the expected content of its sequence. */
export interface Saved {
  readonly snapshot: Snapshot
  readonly root: number
  readonly tokens: readonly number[]
}
