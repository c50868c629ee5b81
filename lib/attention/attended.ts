import { outputOf, type AttendCall } from './attend-call.js'
import type { Float16ArrayLike } from '../border/dtype.js'
import { StopSignal } from '../border/stop-signal.js'
import { tensorOf, type Tensor } from '../border/tensor.js'

/** Arrays that an output may go to: of 32-bit floats, or of half floats or their bits. */
export type AttendOut = Float32Array | Uint16Array | Float16ArrayLike

/** What attention gives. */
export interface Attended<Out = Tensor> {
  /** The output, of the queries' shape (with the values' head dimension) and dtype: a tensor, or the array that was given. */
  readonly out: Out
  /** With `returnLse`, the natural logarithm of each row's sum, `[tokens, query heads]`; -Infinity where it saw nothing. */
  readonly lse?: Float32Array
}

/** What attention gives with `returnLse`. */
export interface AttendedWithLse<Out = Tensor> extends Attended<Out> {
  readonly lse: Float32Array
}

/** @internal Makes a call of attention. */
export function attended(call: AttendCall, out: AttendOut | undefined): Attended<Tensor | AttendOut> {
  const answer = call.run()
  if (!call.settings.returnLse) return { out: out ?? outputOf(answer) }
  const found = answer as { readonly out: unknown; readonly lse: Float32Array }
  return { out: out ?? outputOf(found.out), lse: found.lse }
}

/** @internal The same off the main thread. */
export async function attendedLater(call: AttendCall, out: AttendOut | undefined): Promise<Attended<Tensor | AttendOut>> {
  return StopSignal.guard(call.settings.signal, async stop => {
    const found = await call.start(stop?.native)
    stop?.check()
    const view = tensorOf(found.out)
    const lse = found.lse === undefined ? {} : { lse: found.lse }
    if (out === undefined) return { out: view, ...lse }
    // One that stayed on a GPU is waited for elsewhere.
    if (view.device === 'cpu') view.readInto(out)
    else await view.readIntoAsync(out)
    view.dispose()
    return { out, ...lse }
  })
}
