// Low-bit pages on each device: within half a step of what went in, and the same codes everywhere.
import { attend, PagedKvCache, type HostTensor } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { waves } from '../support/pages.js'
import { span } from '../support/tokens.js'

const [HEADS, DIM, TOKENS] = [2, 64, 40]

/** Half a step of values up to 1: of f8e4m3 at 1, of q8, of q4 between -1 and 1. */
const HALF_STEP = { f8e4m3: 1 / 32, q8: 0.51 / 127, q4: 1.01 / 15 }

/** Hadamard's matrix spreads an error over the row. The step of a row of V grows as much, if all its elements add up in one. */
const SPREAD = 8

const distance = (one: ArrayLike<number>, other: ArrayLike<number>): number =>
  Math.max(...Array.from(one, (value, at) => Math.abs(value - (other[at] as number))))

const [k, v] = [waves(3, [HEADS, TOKENS, DIM]), waves(5, [HEADS, TOKENS, DIM])] as [
  HostTensor & { data: Float32Array },
  HostTensor & { data: Float32Array },
]

/** True for K, and for V, if it is rotated. */
type Rotated = readonly [boolean, boolean]

const ROTATED = { '': [false, false], ', hadamard': [true, false], ', rotated': [true, true] } as const

function filled(
  device: string,
  format: keyof typeof HALF_STEP,
  [hadamard, valueHadamard]: Rotated,
): { cache: PagedKvCache; seq: number } {
  const cache = new PagedKvCache({
    device,
    capacity: 8,
    blockSize: 16,
    numLayers: 1,
    numKvHeads: HEADS,
    headDim: DIM,
    keyFormat: format,
    valueFormat: format,
    hadamard,
    valueHadamard,
  })
  const seq = cache.createSequence()
  cache.writeTokens(seq, 0, 0, k, v)
  return { cache, seq }
}

for (const format of ['f8e4m3', 'q8', 'q4'] as const) {
  for (const [name, rotated] of Object.entries(ROTATED)) {
    onDevices(`${format}${name}: full pages are quantised as on the CPU, others are exact`, (t, device) => {
      const { cache, seq } = filled(device, format, rotated)
      const { cache: reference, seq: same } = filled('cpu', format, rotated)
      const found = cache.gather(seq, 0)
      const [keys, values] = [found.k.toFloat32Array(), found.v.toFloat32Array()]
      t.true(distance(values, v.data) > 0)
      t.true(
        distance(values, v.data) <= HALF_STEP[format] * (rotated[1] ? SPREAD ** 2 : 1),
        `${distance(values, v.data)}`,
      )
      t.true(distance(keys, k.data) <= HALF_STEP[format] * (rotated[0] ? SPREAD : 1), `${distance(keys, k.data)}`)
      const wanted = reference.gather(same, 0)
      t.true(
        distance(values, wanted.v.toFloat32Array()) <= (rotated[1] ? 1e-6 : 0),
        'the codes and scales are those of the CPU',
      )
      t.true(distance(keys, wanted.k.toFloat32Array()) <= (rotated[0] ? 1e-6 : 0))
      const last = cache.readKv(seq, 0, TOKENS - 1)
      t.is(
        distance(
          last.value,
          span(0, HEADS).flatMap(head =>
            Array.from(v.data.subarray(((head + 1) * TOKENS - 1) * DIM, (head + 1) * TOKENS * DIM)),
          ),
        ),
        0,
      )
      cache.dispose()
      reference.dispose()
    })

    onDevices(`${format}${name}: attention over the pages is that over their gathered values`, (t, device) => {
      const { cache, seq } = filled(device, format, rotated)
      const q = waves(7, [3, 2 * HEADS, DIM])
      const { out } = attend(q, { cache, layer: 0, sequences: [seq] }, { qOffsets: [0, 3] })
      const gathered = cache.gather(seq, 0)
      const turned = (tensor: typeof gathered.k): HostTensor => ({
        data: tokensFirst(tensor.toFloat32Array()),
        shape: [TOKENS, HEADS, DIM],
      })
      const wanted = attend(
        q,
        { k: turned(gathered.k), v: turned(gathered.v), kvOffsets: [0, TOKENS] },
        { qOffsets: [0, 3] },
      )
      t.true(distance(out.toFloat32Array(), wanted.out.toFloat32Array()) <= 2e-5)
      cache.dispose()
    })
  }
}

/** `[heads, tokens, dim]` as `[tokens, heads, dim]`. */
const tokensFirst = (data: Float32Array): Float32Array =>
  Float32Array.from(
    span(0, TOKENS).flatMap(token =>
      span(0, HEADS).flatMap(head =>
        Array.from(data.subarray((head * TOKENS + token) * DIM, (head * TOKENS + token + 1) * DIM)),
      ),
    ),
  )
