import test, { type ExecutionContext } from 'ava'

import { isKvTideError, Tensor } from '../../index.js'

/** A device, and the reason why it cannot be used, if there is one. */
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

/** A test body: it makes its tensors on `device`, passes memory of the host in, and copies results out. */
type Body = (t: ExecutionContext, device: string) => void | Promise<void>

const CPU: Device = deviceOf('cpu')
const CUDA: Device = deviceOf('cuda:0')

function runOn(devices: readonly Device[], title: string, body: Body): void {
  for (const { name, obstacle } of devices) {
    if (obstacle === undefined) test(`${name}: ${title}`, t => body(t, name))
    else test.skip(`${name}: ${title}`, t => t.fail(obstacle))
  }
}

/** One test per device. If a device is missing, its test is reported as SKIPPED. */
export const onDevices = (title: string, body: Body): void => runOn([CPU, CUDA], title, body)

/** A test for devices with their own memory only. */
export const onGpus = (title: string, body: Body): void => runOn([CUDA], title, body)
