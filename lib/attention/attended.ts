import { outputOf, type AttendCall } from './attend-call.js'
import type { Float16ArrayLike } from '../border/dtype.js'
import { StopSignal } from '../border/stop-signal.js'
import { tensorOf, type Tensor } from '../border/tensor.js'

/** Arrays that an output may be written to: 32-bit floats, half floats, or the bits of half floats. */
export type AttendOut = Float32Array | Uint16Array | Float16ArrayLike

/** The result of attention. */
export interface Attended<Out = Tensor> {
  /** The output, in the queries' dtype and shape, with the values' head dimension: a tensor, or the array that was given. */
  readonly out: Out
  /** With `returnLse`, the natural logarithm of each row's sum of exponentials, `[tokens, query heads]`; -Infinity for a row that saw nothing. */
  readonly lse?: Float32Array
}

/** The result of attention with `returnLse`. */
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
    // An output in a GPU's memory is waited for off the main thread.
    if (view.device === 'cpu') view.readInto(out)
    else await view.readIntoAsync(out)
    view.dispose()
    return { out, ...lse }
  })
}
