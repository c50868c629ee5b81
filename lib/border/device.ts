import { binding } from '../loading/binding.js'
import { optional, text } from './check.js'

/** @internal The name of a device that can be used, `'cuda:0'` for `'cuda'`; the CPU where none is given. */
export function readDevice(device: unknown): string {
  const name = optional(text, 'device', device) ?? 'cpu'
  return name === 'cpu' ? name : binding.deviceName(name)
}

/** @internal The same of a device of any machine, which need not be one of this. */
export function readFullName(device: unknown): string {
  return binding.fullDeviceName(optional(text, 'device', device) ?? 'cpu')
}
