// Tensors of transformers.js as arguments: ids, masks, and the pasts of a `DynamicCache`. Each is checked before the cache changes.
import { arrayKind, arrayLength, fields, isArray, isObject, list, typedArray } from '../errors/check.js'
import { invalid, KvTideError } from '../errors/errors.js'
import { line } from '../errors/shown.js'
import type { OnnxTensor } from '../border/tensor.js'
import type { OnnxPorts } from '../onnx/ports.js'
import { readTokens } from '../sequences/tokens.js'
import type { TransformersTensor } from './package.js'

/** The maximum number of elements of a mask. */
export const ELEMENTS_MAX: number = 2 ** 24

/** @internal The sizes of a layer. */
export interface LayerSizes {
  readonly heads: number
  readonly dims: readonly [key: number, value: number]
}

/** @internal Checks that an input which is replaced has the same values as its replacement. */
export function checkEach(
  argument: string,
  value: unknown,
  length: number,
  expected: (place: number) => number,
  why: string,
): void {
  if (value === undefined || value === null) return
  const tensor = tensorIn(argument, value)
  const given = elementsIn(argument, tensor)
  if (given.length !== length) throw invalid(`${argument}.dims`, tensor.dims, `[1, ${length}], as input_ids has`)
  checkRow(argument, tensor.dims, length)
  const wrong = given.findIndex((entry, place) => Number(entry) !== expected(place))
  if (wrong >= 0) throw invalid(`${argument}[${wrong}]`, given[wrong], `${expected(wrong)}: ${why}`)
}

/** @internal */
export function isTensor(value: unknown): value is TransformersTensor {
  return isObject(value) && 'dims' in value && 'data' in value && isArray(value.dims)
}

/** @internal */
export function tensorIn(argument: string, value: unknown): TransformersTensor {
  if (!isTensor(value)) throw invalid(argument, value, 'a Tensor of transformers.js')
  return value
}

/** The elements of a tensor. */
function elementsIn(argument: string, { data }: TransformersTensor): (bigint | number)[] {
  const place = `${argument}.data`
  if (isArray(data)) return list(place, data, readElement, ELEMENTS_MAX)
  const array = typedArray<BigInt64Array>(place, data, [arrayKind(data) ?? 'BigInt64Array'])
  return Array.from({ length: arrayLength(array) }, (_, at) => array[at] as bigint)
}

function readElement(argument: string, value: unknown): bigint | number {
  if (typeof value === 'bigint' || typeof value === 'number') return value
  throw invalid(argument, value, 'a number')
}

function checkRow(argument: string, dims: readonly number[], length: number): void {
  if (dims.length !== 2 || dims[0] !== 1 || dims[1] !== length)
    throw invalid(`${argument}.dims`, dims, '[1, tokens]: one row')
}

/** @internal The ids of one row of tokens. */
export function idsOf(argument: string, tensor: TransformersTensor): Uint32Array {
  const ids = readTokens(argument, tensor.data)
  checkRow(argument, tensor.dims, ids.length)
  return ids
}

/** @internal The tensors of a `DynamicCache`. Anything else would count as an empty one, and drop the tokens of the sequence. */
export function pastIn(value: unknown): Readonly<Record<string, OnnxTensor | undefined>> {
  const { get_seq_length, ...tensors } = fields<Record<string, OnnxTensor>>('past', value)
  if (typeof get_seq_length === 'function') return tensors as Readonly<Record<string, OnnxTensor | undefined>>
  throw invalid('past', value, 'a DynamicCache of transformers.js')
}

/** @internal The number of rows in a `DynamicCache`: the same in all layers, with the sizes of the model. */
export function rowsOf(
  held: Readonly<Record<string, OnnxTensor | undefined>>,
  { layers }: OnnxPorts,
  sizes: readonly LayerSizes[],
): number {
  const pasts = new Set(layers.flat().map(({ past }) => past))
  const foreign = Object.keys(held).find(name => isTensor(held[name]) && !pasts.has(name))
  if (foreign !== undefined) throw invalid('past', foreign, `only the ${pasts.size} pasts of this model`)
  if (layers.every(pair => pair.every(({ past }) => held[past] === undefined))) return 0
  let rows: number | undefined
  for (const [place, pair] of layers.entries()) {
    const { heads, dims } = sizes[place] as LayerSizes
    for (const [
      side,
      {
        past,
        input: { type },
      },
    ] of pair.entries()) {
      const found = held[past]
      if (found === undefined) throw invalid('past', Object.keys(held).join(', '), `${past} as well`)
      if (!isTensor(found)) throw invalid(past, found, 'a Tensor of transformers.js')
      rows ??= found.dims[2]
      const [value, expected] = [found.dims, [1, heads, rows, dims[side]]].map(shape =>
        line(`[${shape.join(', ')}]`),
      ) as [string, string]
      if (value !== expected)
        throw new KvTideError('SHAPE_MISMATCH', `${past} is ${value}, expected ${expected}`, {
          argument: past,
          value,
          expected,
        })
      if (type !== undefined && found.type !== type)
        throw new KvTideError('DTYPE_MISMATCH', `${past} is ${line(String(found.type))}, expected ${type}`, {
          argument: past,
          value: line(String(found.type)),
          expected: type,
        })
      const { location = 'cpu' } = found as TransformersTensor
      if (location !== 'cpu') throw invalid(`${past}.location`, location, 'cpu')
    }
  }
  return rows ?? 0
}
