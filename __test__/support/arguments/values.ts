import { runInNewContext } from 'node:vm'

import { KvCache, PagedKvCache, RollbackCache, RotatingCache, Snapshot, Tensor } from '../../../index.js'

/** Four numbers, as many as every array argument of the table has. */
const four = (): Float32Array => Float32Array.from([1, 2, 3, 4])

function detached<T extends Float32Array | Int32Array>(array: T): T {
  structuredClone(array, { transfer: [array.buffer as ArrayBuffer] })
  return array
}

/** Returns an array whose buffer was shrunk, if the runtime supports that. */
function shrunk(): Float32Array {
  const buffer: ArrayBuffer = Reflect.construct(ArrayBuffer, [16, { maxByteLength: 16 }])
  const array = new Float32Array(buffer, 0, 4)
  Reflect.apply(Reflect.get(buffer, 'resize') as (bytes: number) => void, buffer, [8])
  return array
}

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable([], {})
  revoke()
  return proxy
}

const holes = (): number[] => {
  const array = [1]
  array.length = 4
  return array
}

const disposed = <T extends { dispose(): void }>(object: T): T => {
  object.dispose()
  return object
}

const kv = (): KvCache => new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 2, maxSeqLen: 2, headDim: 7 })
const tensor = (): Tensor => Tensor.from(four(), [1, 1, 2, 2])
const kvSnapshot = (): Snapshot => kv().snapshot()

const paged = (): PagedKvCache => new PagedKvCache({ capacity: 1, numLayers: 1, numKvHeads: 1, headDim: 1 })

/** Values that are wrong for most parameters. If a parameter accepts one of them, the table says so. */
export const VALUES: Readonly<Record<string, unknown>> = {
  '-1': -1,
  '1.5': 1.5,
  NaN: NaN,
  Infinity: Infinity,
  '2^31': 2 ** 31,
  '2^32 + 5': 2 ** 32 + 5,
  '2^53': 2 ** 53,
  '"3"': '3',
  '10n': 10n,
  null: null,
  nothing: undefined,
  true: true,
  'a symbol': Symbol('value'),
  'a function': () => 1,
  'an empty object': {},
  'an empty array': [],
  'an array with holes': holes(),
  'a longest array': Object.assign([], { length: 2 ** 32 - 1 }),
  'a revoked proxy': revoked(),
  'a Float32Array of 3': new Float32Array(3),
  'a Float64Array': Float64Array.from([1, 2, 3, 4]),
  'a Uint8Array': Uint8Array.from([1, 2, 3, 4]),
  'a Uint32Array': Uint32Array.from([1, 2, 3, 4]),
  'a Uint16Array': Uint16Array.from([1, 2, 3, 4]),
  'a BigInt64Array': new BigInt64Array(4),
  'a detached Float32Array': detached(four()),
  'a detached Int32Array': detached(Int32Array.from([0])),
  'a shrunk array': shrunk(),
  'a shared array': new Float32Array(new SharedArrayBuffer(16)),
  'a shared array that hides its buffer': Object.defineProperty(new Float32Array(new SharedArrayBuffer(16)), 'buffer', {
    value: new ArrayBuffer(16),
  }),
  'an array with a length of its own': Object.defineProperty(four(), 'length', { value: 1e9 }),
  'an array of another realm': runInNewContext('Float32Array.from([1, 2, 3, 4])'),
  'a proxy of an array': new Proxy(four(), {}),
  'what looks like an array': Object.create(Float32Array.prototype),
  'an ArrayBuffer': new ArrayBuffer(16),
  'a Tensor of another shape': Tensor.from(four().subarray(1), [3]),
  'a Tensor of another dtype': Tensor.from(new Uint16Array(4), [1, 1, 2, 2], { dtype: 'f16' }),
  'a disposed Tensor': disposed(tensor()),
  'a proxy of a Tensor': new Proxy(tensor(), {}),
  'a clone of a Tensor': structuredClone(tensor()),
  'what looks like a Tensor': Object.create(Tensor.prototype),
  'a Tensor that looks like a Snapshot': Object.setPrototypeOf(tensor(), Snapshot.prototype),
  'a Snapshot': kvSnapshot(),
  'a Snapshot that looks like a Tensor': Object.setPrototypeOf(kvSnapshot(), Tensor.prototype),
  'a disposed Snapshot': disposed(kvSnapshot()),
  'a RotatingSnapshot': new RotatingCache({ dim: 2, maxSeqLen: 99 }).snapshot(),
  'a disposed RotatingSnapshot': disposed(new RotatingCache({ dim: 2, maxSeqLen: 99 }).snapshot()),
  'a RollbackMark': new RollbackCache().snapshot(),
  'a disposed RollbackMark': disposed(new RollbackCache().snapshot()),
  'a Sequence': paged().openSequence(),
  'a disposed Sequence': disposed(paged().openSequence()),
  'a Snapshot of a Sequence': paged().openSequence().snapshot(),
  'a PrefixMatch': paged().match([]),
  'a disposed PrefixMatch': disposed(paged().match([])),
  'a KvCache': kv(),
}
