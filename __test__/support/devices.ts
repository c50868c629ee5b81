import test, { type ExecutionContext } from 'ava'

import { isKvTideError, Tensor } from '../../index.js'

/** A device, and why nothing can run on it; it is usable where there is no reason. */
interface Device {
  readonly name: string
  readonly obstacle: string | undefined
}

function deviceOf(name: string): Device {
  try {
    Tensor.from(new Float32Array(1), [1], { device: name }).dispose()
    return { name, obstacle: undefined }
  } catch (error) {
    if (!isKvTideError(error) || error.code !== 'DEVICE_UNAVAILABLE') throw error
    return { name, obstacle: error.details.reason }
  }
}

/** A test body: what it makes lies on `device`, what goes in is memory of the host, what comes out is read by copies. */
type Body = (t: ExecutionContext, device: string) => void | Promise<void>

const CPU: Device = deviceOf('cpu')
const CUDA: Device = deviceOf('cuda:0')

function runOn(devices: readonly Device[], title: string, body: Body): void {
  for (const { name, obstacle } of devices) {
    if (obstacle === undefined) test(`${name}: ${title}`, t => body(t, name))
    else test.skip(`${name}: ${title}`, t => t.fail(obstacle))
  }
}

/** A test of each device by itself: what cannot run here is skipped by its name. */
export const onDevices = (title: string, body: Body): void => runOn([CPU, CUDA], title, body)

/** A test of what only a device with memory of its own can show. */
export const onGpus = (title: string, body: Body): void => runOn([CUDA], title, body)
