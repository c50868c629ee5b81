// Tensor on each device: in, out, parts of it, and what is refused.
import { Tensor } from '../../index.js'
import { onDevices, onGpus } from '../support/devices.js'
import { throwsCode } from '../support/throws.js'
import { bytes, elements, FLOATS, numbers, span } from '../support/tokens.js'

onDevices('what went in comes out, in every dtype', (t, device) => {
  for (const dtype of [...FLOATS, 'u8'] as const) {
    const data = elements(
      dtype,
      span(0, 240).map(value => value % 97),
    )
    using tensor = Tensor.from(data, [4, 6, 10], { dtype, device })
    t.deepEqual([tensor.device, tensor.dtype, tensor.shape, tensor.strides], [device, dtype, [4, 6, 10], [60, 10, 1]])
    t.deepEqual(tensor.toArray(), data)
    t.deepEqual(
      numbers(tensor),
      span(0, 240).map(value => value % 97),
    )
    const out = elements(dtype, span(0, 240).fill(0))
    t.is(tensor.readInto(out), out)
    t.deepEqual(out, data)
    throwsCode(t, 'INVALID_ARGUMENT', () => tensor.readInto(elements(dtype, span(0, 239))))
  }
})

onDevices('parts and other shapes read in order', (t, device) => {
  using tensor = Tensor.from(elements('f16', span(0, 240)), [4, 6, 10], { dtype: 'f16', device })
  const part = tensor.narrow(1, 2, 3).narrow(2, 4, 5)
  const wanted = span(0, 4).flatMap(row =>
    span(2, 5).flatMap(column => span(4, 9).map(at => 60 * row + 10 * column + at)),
  )
  t.deepEqual([part.shape, part.strides, part.isContiguous, part.device], [[4, 3, 5], [60, 10, 1], false, device])
  t.deepEqual(numbers(part), wanted)
  const copy = part.reshape([12, 5])
  t.deepEqual([numbers(copy), copy.isContiguous, copy.device], [wanted, true, device])
  t.true(copy.equals(part.reshape([12, 5])))
  t.false(copy.equals(tensor.reshape([24, 10]).narrow(0, 0, 12).narrow(1, 0, 5)))
  t.deepEqual(bytes(tensor.narrow(0, 1, 0)), new Uint8Array(0))
  tensor.dispose()
  throwsCode(t, 'DISPOSED', () => tensor.toArray())
})

onDevices('a device with an index too high, or one that is not known, is refused', (t, device) => {
  const one = new Float32Array(1)
  throwsCode(t, 'DEVICE_UNAVAILABLE', () => Tensor.from(one, [1], { device: 'cuda:4000' }))
  for (const name of [`${device}:0`, `${device}x`, 'gpu', ''])
    throwsCode(t, 'INVALID_ARGUMENT', () => Tensor.from(one, [1], { device: name }))
  t.is(Tensor.from(one, [1], { device }).device, device)
})

onGpus('tensors of two devices do not go together', (t, device) => {
  const data = new Float32Array([1, 2])
  const [here, there] = [Tensor.from(data, [2], { device }), Tensor.from(data, [2])]
  t.true(here.equals(there), 'their bits can be compared')
  throwsCode(t, 'DEVICE_MISMATCH', () => here.data, { argument: 'data', value: device, expected: 'cpu' })
  t.deepEqual(there.data, data)
})
