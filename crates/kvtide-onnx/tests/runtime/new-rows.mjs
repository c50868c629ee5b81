// Runs a model unmodified and with a suffix, and checks that the new rows equal those of the presents, bit for bit.
//
//   node new-rows.mjs <folder with model.onnx and with.onnx> <onnxruntime-node> <vocabulary> <head dimension if the graph only names it>
import { createRequire } from 'node:module'
import { join } from 'node:path'

const [folder, runtime, vocabulary, unnamed] = process.argv.slice(2)
const ort = createRequire(import.meta.url)(runtime)
const options = {
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
  logSeverityLevel: 4,
  extra: { session: { intra_op: { allow_spinning: '0' } } },
}
const before = await ort.InferenceSession.create(join(folder, 'model.onnx'), options)
const after = await ort.InferenceSession.create(join(folder, 'with.onnx'), options)

const ints = (numbers, dims) => new ort.Tensor('int64', BigInt64Array.from(numbers, BigInt), dims)
const bytesOf = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength)

/** Rows of `[1, heads, rows, dim]`. */
const rowsOf = (tensor, from, count) => {
  const [, heads, rows, dim] = tensor.dims
  const width = (bytesOf(tensor).length / (heads * rows * dim)) * dim
  const rowsOfHead = (_, head) =>
    bytesOf(tensor).subarray((head * rows + from) * width, (head * rows + from + count) * width)
  return Buffer.concat(Array.from({ length: heads }, rowsOfHead))
}

let past
let length = 0
let compared = 0
for (const tokens of [5, 1, 3, 1]) {
  const feeds = {}
  for (const { name, type, shape } of before.inputMetadata) {
    if (name === 'attention_mask') feeds[name] = ints(Array(length + tokens).fill(1), [1, length + tokens])
    else if (name === 'position_ids')
      feeds[name] = ints(
        Array.from({ length: tokens }, (_, index) => length + index),
        [1, tokens],
      )
    else if (name === 'input_ids')
      feeds[name] = ints(
        Array.from({ length: tokens }, (_, index) => (7 * (length + index) + 3) % vocabulary),
        [1, tokens],
      )
    else {
      const fixed = String(shape[2]).includes('sliding') ? 64 : 0
      const dims = [1, shape[1], fixed, typeof shape[3] === 'number' ? shape[3] : Number(unnamed)]
      feeds[name] =
        past?.[name] ??
        new ort.Tensor(type, new (type === 'float16' ? Uint16Array : Float32Array)(dims[1] * fixed * dims[3]), dims)
    }
  }
  const rows = Array.from({ length: tokens }, (_, index) => length + index)
  const expected = await before.run(feeds)
  const found = await after.run({ ...feeds, 'kvtide.new_rows': ints(rows, [tokens]) })
  past = {}
  for (const [name, tensor] of Object.entries(expected)) {
    // A present of a fixed size has unwritten rows.
    const written = name.startsWith('present') ? of => rowsOf(of, 0, length + tokens) : bytesOf
    if (!written(tensor).equals(written(found[name]))) throw new Error(`${name} has changed`)
    if (!name.startsWith('present')) continue
    past[name.replace(/^present/, 'past_key_values')] = tensor
    const chosen = found[`kvtide.new.${name}`]
    if (chosen.dims.join() !== [1, tensor.dims[1], tokens, tensor.dims[3]].join())
      throw new Error(`${name}: [${chosen.dims}]`)
    if (!rowsOf(tensor, length, tokens).equals(bytesOf(chosen))) throw new Error(`${name}: rows differ`)
    compared += 1
  }
  length += tokens
}
console.log(compared)
