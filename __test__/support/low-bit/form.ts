import { PagedKvCache, type UniformCacheOptions } from '../../../index.js'

/** A form in which pages store K and V. */
export interface Form {
  readonly name: string
  readonly options: Pick<UniformCacheOptions, 'dtype' | 'keyFormat' | 'valueFormat' | 'hadamard' | 'valueHadamard'>
}

const low = (keyFormat: 'f8e4m3' | 'q8' | 'q4', valueFormat: 'f8e4m3' | 'q8' | 'q4'): readonly Form[] => {
  const name = keyFormat === valueFormat ? keyFormat : `K ${keyFormat}, V ${valueFormat}`
  const rotated = { name: `${name}, valueHadamard`, options: { keyFormat, valueFormat, valueHadamard: true } }
  return [
    { name, options: { keyFormat, valueFormat } },
    { name: `${name}, hadamard`, options: { keyFormat, valueFormat, hadamard: true } },
    ...(valueFormat === 'q4' ? [rotated] : []),
  ]
}

/** The form that all others are compared with. */
export const exact: Form = { name: 'f32', options: { dtype: 'f32' } }

/** Every form whose error is measured. */
export const forms: readonly Form[] = [
  { name: 'f16', options: { dtype: 'f16' } },
  { name: 'bf16', options: { dtype: 'bf16' } },
  ...low('f8e4m3', 'f8e4m3'),
  ...low('q8', 'q8'),
  ...low('q8', 'q4'),
  ...low('q4', 'q8'),
  ...low('q4', 'q4'),
]

/** The block size of all error measurements. */
export const BLOCK_SIZE = 16

/** A cache of this form for so many tokens. */
export function pagesFor(
  form: Form,
  tokens: number,
  model: Pick<UniformCacheOptions, 'numLayers' | 'numKvHeads' | 'headDim'>,
): PagedKvCache {
  return new PagedKvCache({
    ...model,
    ...form.options,
    capacity: Math.ceil(tokens / BLOCK_SIZE),
    blockSize: BLOCK_SIZE,
  })
}
