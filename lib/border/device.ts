import { binding } from '../loading/binding.js'
import { optional, text } from './check.js'

/** @internal The full name of a usable device (`'cuda:0'` for `'cuda'`); the CPU where none is given. */
export function readDevice(device: unknown): string {
  const name = optional(text, 'device', device) ?? 'cpu'
  return name === 'cpu' ? name : binding.deviceName(name)
}

/** @internal The full name of a device, which this machine need not have. */
export function readFullName(device: unknown): string {
  return binding.fullDeviceName(optional(text, 'device', device) ?? 'cpu')
}
