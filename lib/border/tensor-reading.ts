import { dtypeRow, type TensorData } from './dtype.js'
import { known, type Names } from './check.js'
import type { Part } from './shown.js'
import { type AsyncOptions, StopSignal } from './stop-signal.js'

const OPTIONS: Names<AsyncOptions> = { signal: 0 }

/** @internal A tensor's elements, read off the main thread; as 32-bit floats if they are to be. */
export async function readLater(part: Part, asFloats: boolean, options: unknown): Promise<TensorData> {
  const { signal } = known<AsyncOptions>('options', options, OPTIONS)
  const row = dtypeRow(asFloats ? 'f32' : part.dtype)
  const stop = StopSignal.of('signal', signal)
  try {
    const bytes = await part.view.readLater(asFloats, stop?.native)
    stop?.check()
    return row.over(bytes.buffer, bytes.byteOffset, bytes.byteLength / row.bytes)
  } catch (error) {
    throw stop === undefined ? error : stop.explain(error)
  } finally {
    stop?.release()
  }
}
