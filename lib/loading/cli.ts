import { isKvTideError } from '../border/errors.js'

const usage = `usage: kvtide doctor
       kvtide onnx inspect model.onnx [--json] [--config config.json]

doctor        prints the loaded binary, why it was chosen, its version, the platform, CPU features, kernels, threads, and why a device is not usable
onnx inspect  prints the attention layers that are found in a graph, or the node at which it is not recognised, and why. Windows come from
              config.json beside the model or one folder up, unless another one is given`

/** The command line: answers the exit code, 1 for what is refused and 2 for arguments that are not known. */
export async function main(args: readonly string[]): Promise<number> {
  try {
    if (args.length === 1 && args[0] === 'doctor') {
      const { doctor } = await import('./doctor.js')
      console.log(doctor())
      return 0
    }
    if (args[0] === 'onnx') {
      const { inspect, readInspect } = await import('../onnx/inspect.js')
      const asked = readInspect(args)
      if (asked !== undefined) return await inspect(asked)
    }
  } catch (error) {
    console.error(isKvTideError(error) ? error.toString() : error)
    return 1
  }
  const asked = args.length === 0 || args[0] === 'help' || args[0] === '--help'
  console[asked ? 'log' : 'error'](usage)
  return asked ? 0 : 2
}
