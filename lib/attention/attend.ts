import { AttendCall } from './attend-call.js'
import { readKv, type AttendKv } from './attend-kv.js'
import { readSettings, type AttendOptions } from './attend-options.js'
import { attended, attendedLater, type Attended, type AttendedWithLse, type AttendOut } from './attended.js'
import type { TokenSource } from '../border/host-tensor.js'
import type { AsyncOptions } from '../border/async-options.js'
import type { Tensor } from '../border/tensor.js'

type WithLse<Options> = Options & { readonly returnLse: true }

/**
 * Attention from `q` to keys and values where they lie: in a cache, in a window with its sinks, or in memory of your own.
 * Nothing is gathered, and no matrix of scores is made.
 *
 * `q` is `[batch, heads, n, headDim]`, or `[tokens, heads, headDim]` where sequences lie one behind the other (`kvOffsets`) or in
 * pages (`cache`). Query heads that share a head of K and V are neighbours. The queries are the last tokens unless `positions`
 * says otherwise. The output of a query that sees no key is zeros.
 *
 * @param out an array to fill with the output, of the queries' dtype and the output's length; it is returned as `out`
 *
 * @example
 * ```ts
 * import { attend, KvCache } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * const token = (...data: number[]) => ({ data: new Float32Array(data), shape: [1, 1, data.length / 2, 2] })
 * const kv = cache.update(token(1, 0, 0, 1), token(10, 20, 30, 40))
 * console.log(attend(token(0, 0), kv).out.toArray()) // Float32Array [20, 30]
 * const { out, lse } = attend(token(0, 0), kv, { window: 1, returnLse: true }, new Float32Array(2))
 * console.log(out) // Float32Array [30, 40]
 * console.log(lse) // Float32Array [0]
 * ```
 */
export function attend(q: TokenSource, kv: AttendKv, options: WithLse<AttendOptions>): AttendedWithLse
export function attend<T extends AttendOut>(q: TokenSource, kv: AttendKv, options: WithLse<AttendOptions>, out: T): AttendedWithLse<T>
export function attend(q: TokenSource, kv: AttendKv, options?: AttendOptions): Attended
export function attend<T extends AttendOut>(q: TokenSource, kv: AttendKv, options: AttendOptions | undefined, out: T): Attended<T>
export function attend(q: TokenSource, kv: AttendKv, options: AttendOptions = {}, out?: AttendOut): Attended<Tensor | AttendOut> {
  return attended(new AttendCall(q, readKv(kv), readSettings(options), out), out)
}

/**
 * As {@link attend}, off the main thread.
 *
 * Typed arrays are copied before the call returns. Caches are read where they lie: until the promise is settled, calls that would
 * change them throw `BUSY`, and reads go on. A cache may be disposed of meanwhile; its memory is freed when the work ends. `out` is
 * written at the end, and must not have lost its memory by then.
 *
 * A wrong argument, or a signal that was aborted before, is refused before anything is copied or started. A later abort ends the
 * work at its next step. The promise is then rejected with `ABORTED`, and the caches can be changed again.
 *
 * @example
 * ```ts
 * import { attendAsync, KvCache } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * const token = (...data: number[]) => ({ data: new Float32Array(data), shape: [1, 1, data.length / 2, 2] })
 * const kv = cache.update(token(1, 0, 0, 1), token(10, 20, 30, 40))
 * const { out } = await attendAsync(token(0, 0), kv, { signal: AbortSignal.timeout(60_000) })
 * console.log(out.toArray()) // Float32Array [20, 30]
 * ```
 */
export function attendAsync(q: TokenSource, kv: AttendKv, options: WithLse<AttendOptions & AsyncOptions>): Promise<AttendedWithLse>
export function attendAsync<T extends AttendOut>(q: TokenSource, kv: AttendKv, options: WithLse<AttendOptions & AsyncOptions>, out: T): Promise<AttendedWithLse<T>>
export function attendAsync(q: TokenSource, kv: AttendKv, options?: AttendOptions & AsyncOptions): Promise<Attended>
export function attendAsync<T extends AttendOut>(q: TokenSource, kv: AttendKv, options: AttendOptions & AsyncOptions | undefined, out: T): Promise<Attended<T>>
export async function attendAsync(
  q: TokenSource,
  kv: AttendKv,
  options: AttendOptions & AsyncOptions = {},
  out?: AttendOut,
): Promise<Attended<Tensor | AttendOut>> {
  return attendedLater(new AttendCall(q, readKv(kv), readSettings(options), out), out)
}
