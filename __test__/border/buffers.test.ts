// Buffers that go away, shrink, grow, or lie anywhere, before a call, within it by a getter, and while its background work runs.
import test, { type ExecutionContext } from 'ava'

import {
  attendAsync,
  type HostTensor,
  isKvTideError,
  KvCache,
  PagedKvCache,
  type PromptExtra,
  RollbackCache,
  Tensor,
} from '../../index.js'
import { layered, LAYERED } from '../support/layered.js'
import { Shelf } from '../support/shelf.js'
import { rejected, throwsCode } from '../support/throws.js'
import { numbers, span, tokens } from '../support/tokens.js'

type Bytes = Uint8Array | Float32Array | Int32Array | Uint32Array

/** An array of the same kind and content over a buffer that can be resized. */
function resizable<T extends Bytes>(array: T): T {
  const buffer = Reflect.construct(ArrayBuffer, [array.byteLength, { maxByteLength: 2 * array.byteLength + 64 }])
  // It has no length of its own: it follows that of its buffer.
  const made = Reflect.construct(array.constructor, [buffer]) as T
  made.set(array as never)
  return made
}

const resize = (array: Bytes, bytes: number): unknown =>
  Reflect.apply(Reflect.get(array.buffer, 'resize') as (bytes: number) => void, array.buffer, [bytes])

/** Changes of an array once a call has it. */
const CHANGES: Readonly<Record<string, (array: Bytes) => unknown>> = {
  'is detached': array => structuredClone(array, { transfer: [array.buffer as ArrayBuffer] }),
  'is written to': array => array.fill(77 as never),
  'shrinks to nothing': array => resize(array, 0),
  'shrinks by an element': array => resize(array, array.byteLength - array.BYTES_PER_ELEMENT),
  grows: array => resize(array, array.byteLength + 32),
}

const kvOptions = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 64, headDim: 1 } as const
const host = (data: Float32Array): HostTensor => ({ data, shape: [1, 1, data.length, 1] })

/** Reads a cache in the background for some milliseconds. */
function readFor(t: ExecutionContext, cache: PagedKvCache): Promise<unknown> {
  const sequence = cache.openSequence()
  const [k, v] = layered(span(100, 120))
  sequence.append({ k, v, tokens: span(100, 120) })
  const q = { data: new Float32Array(800), shape: [400, 2, 1] }
  const reading = attendAsync(q, { cache, layer: 0, sequences: span(0, 400).map(() => sequence) })
  throwsCode(t, 'BUSY', () => cache.openSequence())
  return reading
}

const key = (): Uint8Array => Uint8Array.of(1, 2, 3)
const extra = (of: Uint8Array): PromptExtra[] => [{ start: 1, end: 3, key: of }]

/** The saved bytes of each kind of cache, and the loads of them, each with a number that says that it was right. */
async function loads(): Promise<
  readonly (readonly [string, Uint8Array, (bytes: Uint8Array) => Promise<unknown>, unknown])[]
> {
  using cache = new PagedKvCache(LAYERED)
  const chat = cache.openSequence()
  const [k, v] = layered(span(0, 9))
  chat.append({ k, v, tokens: span(0, 9) })
  using growing = new KvCache(kvOptions)
  growing.update(tokens(0, 3), tokens(0, 3))
  using tentative = new RollbackCache()
  tentative.append(tokens(0, 2), tokens(0, 2))
  const { prefixKey } = LAYERED
  return [
    [
      'PagedKvCache.load',
      await cache.saveBytes(),
      async bytes => {
        const loaded = await PagedKvCache.load(bytes, { prefixKey: prefixKey as Uint8Array })
        const { length } = loaded.match(span(0, 20))
        loaded.dispose()
        return length
      },
      8,
    ],
    [
      'loadSequence',
      await chat.saveBytes(),
      async bytes => {
        const other = new PagedKvCache(LAYERED)
        const loaded = await other.loadSequence(bytes)
        const shown = numbers(other.gather(loaded, 0).v)
        other.dispose()
        return shown?.[8]
      },
      -8,
    ],
    ['KvCache.load', await growing.saveBytes(), async bytes => numbers((await KvCache.load(bytes)).getKv().k)?.[2], 2],
    ['RollbackCache.load', await tentative.saveBytes(), async bytes => (await RollbackCache.load(bytes)).totalLen, 2],
  ]
}

test('bytes of a load may change in any way once the call has returned', async t => {
  for (const [what, bytes, load, wanted] of await loads()) {
    for (const [change, make] of Object.entries(CHANGES)) {
      const given = resizable(bytes)
      const loading = load(given)
      make(given)
      t.is(await loading, wanted, `${what}: ${change}`)
    }
  }
})

test('bytes of a load may lie at any place of their buffer', async t => {
  for (const [what, bytes, load, wanted] of await loads()) {
    for (let offset = 0; offset < 9; offset++) {
      const wide = new Uint8Array(bytes.length + 16).fill(255)
      wide.set(bytes, offset)
      t.is(
        await load(wide.subarray(offset, offset + bytes.length)),
        wanted,
        `${what}, ${offset} bytes behind the start`,
      )
    }
  }
})

test('bytes of a load that another thread could change are refused', async t => {
  for (const [what, bytes, load] of await loads()) {
    const shared = new Uint8Array(new SharedArrayBuffer(bytes.length))
    shared.set(bytes)
    await rejected(load(shared), 'INVALID_ARGUMENT')
    t.pass(what)
  }
})

test('arrays of attention in the background may change in any way once the call has returned', async t => {
  for (const [change, make] of Object.entries(CHANGES)) {
    const [q, k, v] = [Float32Array.of(1), Float32Array.of(1, 2), Float32Array.of(3, 4)].map(resizable) as [
      Float32Array,
      Float32Array,
      Float32Array,
    ]
    const starts = resizable(Int32Array.of(1))
    const attending = attendAsync(host(q), { k: host(k), v: host(v) }, { starts })
    for (const array of [q, k, v, starts]) make(array)
    t.is((await attending).out.toArray()[0], 4, change)
  }
})

test('an output that changes while background work runs is written whole, or refused', async t => {
  for (const [change, make] of Object.entries(CHANGES)) {
    const wanted = span(0, 4)
    using tensor = tokens(0, 4)
    const kv = { k: tokens(0, 1), v: tokens(7, 8) }
    const [read, attended] = [resizable(new Float32Array(4)), resizable(new Float32Array(1))]
    const calls = [
      [read, tensor.readIntoAsync(read), wanted],
      [attended, attendAsync(tokens(0, 1), kv, {}, attended), [7]],
    ] as const
    for (const [out] of calls) make(out)
    for (const [out, call, values] of calls) {
      try {
        await call
        t.deepEqual(Array.from(out).slice(0, values.length), values, change)
      } catch (error) {
        t.true(
          isKvTideError(error) && /^(INVALID_ARGUMENT|SHAPE_MISMATCH)$/.test(error.code),
          `${change}: ${String(error)}`,
        )
        t.not(change, 'is written to')
      }
    }
  }
})

test('an array that a getter of the same call shrinks or detaches is refused, and one that grows is read as it was', t => {
  for (const [change, make] of Object.entries(CHANGES)) {
    using cache = new KvCache(kvOptions)
    const data = resizable(Float32Array.of(1, 2, 3))
    const changing = {
      data: Float32Array.of(4, 5, 6),
      get shape() {
        make(data)
        return [1, 1, 3, 1]
      },
    }
    try {
      cache.update({ data, shape: [1, 1, 3, 1] }, changing)
      t.deepEqual(numbers(cache.getKv().v), [4, 5, 6], change)
      t.true(/written|grows/.test(change), change)
    } catch (error) {
      t.true(
        isKvTideError(error) && /^(INVALID_ARGUMENT|SHAPE_MISMATCH)$/.test(error.code),
        `${change}: ${String(error)}`,
      )
      t.true(cache.isEmpty, change)
      t.not(change, 'is written to')
    }
  }
})

test('memory of WebAssembly is read as it is, and refused once it has grown', t => {
  const wasm = Reflect.get(globalThis, 'WebAssembly') as {
    Memory: new (of: object) => { buffer: ArrayBuffer; grow(by: number): void }
  }
  const memory = new wasm.Memory({ initial: 1, maximum: 4 })
  const data = new Float32Array(memory.buffer, 4, 3)
  data.set([1, 2, 3])
  using cache = new KvCache(kvOptions)
  cache.update(host(data), host(data))
  t.deepEqual(numbers(cache.getKv().k), [1, 2, 3])
  memory.grow(1)
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.update({ data, shape: [1, 1, 3, 1] }, tokens(0, 3)))
  t.is(cache.seqLen, 3)
})

test('tokens, salts and extras may change in any way while a match looks in the tiers', async t => {
  const shelf = new Shelf()
  const tiers = { store: { store: shelf }, deadline: 60_000 }
  const [k, v] = layered(span(0, 21))
  {
    await using first = new PagedKvCache({ ...LAYERED, tiers })
    using sequence = first.openSequence({ salt: 'tenant', extra: extra(key()) })
    sequence.append({ k, v, tokens: span(0, 21) })
    t.true(await first.flush(60_000))
  }
  for (const [change, make] of Object.entries(CHANGES)) {
    for (const isBusy of [false, true]) {
      using cache = new PagedKvCache({ ...LAYERED, tiers })
      // A match of a cache that is read in the background begins once it is free.
      const reading = isBusy ? readFor(t, cache) : undefined
      const [ids, of] = [resizable(Uint32Array.from(span(0, 21))), resizable(key())]
      const [salt, list] = [resizable(new TextEncoder().encode('tenant')), extra(of)]
      const matching = cache.match(ids, { salt, extra: list, tiers: 'all' })
      for (const array of [ids, salt, of]) make(array)
      list[0] = { start: 0, end: 21, key: Uint8Array.of(9) }
      t.is((await matching).length, 20, `${change}${isBusy ? ', of a cache that is read' : ''}`)
      await reading
    }
  }
})

test('keys and secrets of a cache may change once it was made', async t => {
  const shelf = new Shelf()
  const [prefixKey, secret] = [new Uint8Array(32).fill(3), new Uint8Array(32).fill(4)]
  const [k, v] = layered(span(0, 21))
  for (const [change, make] of Object.entries(CHANGES)) {
    const given = [resizable(prefixKey), resizable(secret)] as const
    await using cache = new PagedKvCache({
      ...LAYERED,
      prefixKey: given[0],
      tiers: { store: { store: shelf, secret: given[1] }, deadline: 60_000 },
    })
    for (const array of given) make(array)
    using sequence = cache.openSequence()
    sequence.append({ k, v, tokens: span(0, 21) })
    t.true(await cache.flush(60_000))
    using other = new PagedKvCache({
      ...LAYERED,
      prefixKey,
      tiers: { store: { store: shelf, secret }, deadline: 60_000 },
    })
    t.deepEqual(cache.keys(span(0, 21)), other.keys(span(0, 21)), change)
    t.is((await other.match(span(0, 21), { tiers: 'all' })).length, 20, change)
    shelf.values.clear()
  }
})

test('a tensor keeps the numbers that it was made of', t => {
  for (const [change, make] of Object.entries(CHANGES)) {
    const data = resizable(Float32Array.of(1, 2, 3))
    using tensor = Tensor.from(data, [3])
    make(data)
    t.deepEqual(numbers(tensor), [1, 2, 3], change)
  }
})
