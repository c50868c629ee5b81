// `kvtide doctor`: prints which addon is loaded, which devices can be used, and which backends run a model. Each row is computed on its own, so that one failure
// does not hide the others.
import { isKvTideError } from '../errors/errors.js'
import { memoryStats } from '../border/process.js'
import { binding, bindingChoice } from '../loading/binding.js'
import { installNet } from '../loading/net.js'
import { onnxLibrary, onnxRuntime } from '../onnx/runtime.js'
import { backendsAnswer } from './backends.js'
import type { Command } from './command.js'
import { GRAPH, graphOf } from './graph-of.js'

/** A device, and the reason why it cannot be used. */
interface DeviceReport {
  readonly name: string
  readonly usable: boolean
  readonly reason: string
}

export const doctor: Command = {
  usage: '[model.onnx] [--dtype q4] [--json]',
  help: `Prints which binary of kvtide is loaded, the reason for the choice, and its file; the platform, CPU features and kernels in use; the number of threads and
the memory limit; for each device, and for the network, whether it can be used, or the reason why not; and the onnxruntime that was found. Add it to bug reports.

With a model: also for each backend whether it runs the model, or the node, the operator, the reason, and what would help. If none runs it, the exit code is 1.

${GRAPH.help}`,
  options: GRAPH.options,
  files: 1,
  isOptional: true,
  async run(call) {
    const rows = report()
    const text = rows.map(([name, value]) => `${name.padEnd(14)} ${value}`).join('\n')
    const json = Object.fromEntries(rows)
    if (call.files.length === 0) return { text, json }
    const model = graphOf(call)
    const backends = await backendsAnswer(model)
    return {
      text: `${text}\n\n${model}\n${backends.text}`,
      json: { ...json, model, backends: backends.json },
      code: backends.runs ? 0 : 1,
    }
  },
}

/** The rows of the report. */
function report(): readonly (readonly [name: string, value: string])[] {
  const build = binding.buildInfo()
  const limit = memoryStats().limitBytes
  const network: unknown = binding.NativeStore.redis
  return [
    ['binary', `kvtide ${build.version}, ${build.target}`],
    ['loaded from', bindingChoice.file],
    ['chosen', `${bindingChoice.kind}: ${bindingChoice.reason}`],
    [
      'platform',
      `${process.platform}-${process.arch}, node ${process.versions.node}, Node-API ${process.versions['napi']}`,
    ],
    ['cpu features', build.cpuFeatures.join(' ') || 'none that kvtide uses'],
    ['kernels', answer(() => binding.kernels())],
    ['threads', answer(() => String(binding.threads()))],
    ['memory limit', Number.isFinite(limit) ? `${(limit / 2 ** 30).toFixed(1)} GiB` : 'none'],
    ...['cpu', 'cuda', 'metal']
      .map(deviceReport)
      .map(({ name, usable, reason }) => [`device ${name}`, usable ? 'usable' : `not usable: ${reason}`] as const),
    ['network', network === undefined ? `not usable: this build has none; ${answer(installNet)}` : 'usable'],
    ['onnxruntime', answer(onnxReport)],
  ]
}

/** The addon's answer, or the message of its error, for instance about a wrong environment variable. */
function answer(ask: () => string): string {
  try {
    return ask()
  } catch (error) {
    return isKvTideError(error) ? error.message : String(error)
  }
}

/** The onnxruntime that was found, and the backend that it would use for a model. */
function onnxReport(): string {
  const { version } = onnxRuntime()
  try {
    return `onnxruntime-node ${version}: models run on the backend graph (${onnxLibrary().file})`
  } catch (error) {
    return `onnxruntime-node ${version}: models run on the backend parts, not on graph: ${isKvTideError(error) ? error.message : String(error)}`
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
