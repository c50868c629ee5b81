import { isKvTideError } from '../border/errors.js'
import { memoryStats } from '../border/process.js'
import { binding, bindingChoice } from '../loading/binding.js'
import { installNet } from '../loading/net.js'
import { onnxLibrary, onnxRuntime } from '../onnx/runtime.js'
import type { Command } from './command.js'

/** A device, and why it cannot be used. */
interface DeviceReport {
  readonly name: string
  readonly usable: boolean
  readonly reason: string
}

export const doctor: Command = {
  usage: '[--json]',
  help: `Prints which binary of kvtide is loaded, why that one, and from where; the platform, what the processor has and which kernels are used for it; threads and
the memory limit; for each device, and for the network, whether it can be used, or why not; and which onnxruntime is found. Put it into a report of a defect.`,
  options: {},
  files: 0,
  run() {
    const rows = report()
    return { text: rows.map(([name, value]) => `${name.padEnd(14)} ${value}`).join('\n'), json: Object.fromEntries(rows) }
  },
}

/** Which binary is loaded, what it runs on, and which devices it can use. */
function report(): readonly (readonly [name: string, value: string])[] {
  const build = binding.buildInfo()
  const limit = memoryStats().limitBytes
  const network: unknown = binding.NativeSharedStore.redis
  return [
    ['binary', `kvtide ${build.version}, ${build.target}`],
    ['loaded from', bindingChoice.file],
    ['chosen', `${bindingChoice.kind}: ${bindingChoice.reason}`],
    ['platform', `${process.platform}-${process.arch}, node ${process.versions.node}, Node-API ${process.versions['napi']}`],
    ['cpu features', build.cpuFeatures.join(' ') || 'none that kvtide looks for'],
    ['kernels', answer(() => binding.kernels())],
    ['threads', answer(() => String(binding.threads()))],
    ['memory limit', Number.isFinite(limit) ? `${(limit / 2 ** 30).toFixed(1)} GiB` : 'none'],
    ...['cpu', 'cuda', 'metal'].map(deviceReport).map(
      ({ name, usable, reason }) => [`device ${name}`, usable ? 'usable' : `not usable: ${reason}`] as const,
    ),
    ['network', network === undefined ? `not usable: this build has none; ${answer(installNet)}` : 'usable'],
    ['onnxruntime', answer(onnxReport)],
  ]
}

/** What the addon answers, or why it refuses, such as a wrong environment variable. */
function answer(ask: () => string): string {
  try {
    return ask()
  } catch (error) {
    return isKvTideError(error) ? error.message : String(error)
  }
}

/** Which onnxruntime is found, and the first way in which it would run a model. */
function onnxReport(): string {
  const { version } = onnxRuntime()
  try {
    return `onnxruntime-node ${version}: models are run as graph (${onnxLibrary().file})`
  } catch (error) {
    return `onnxruntime-node ${version}: models are run as parts; not as graph: ${isKvTideError(error) ? error.message : String(error)}`
  }
}

function deviceReport(name: string): DeviceReport {
  try {
    binding.deviceName(name)
    return { name, usable: true, reason: '' }
  } catch (error) {
    const reason = isKvTideError(error) && error.code === 'DEVICE_UNAVAILABLE' ? error.details.reason : String(error)
    return { name, usable: false, reason }
  }
}
