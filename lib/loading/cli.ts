import { isKvTideError } from '../border/errors.js'

const usage = `usage: kvtide doctor

doctor   prints the loaded binary, why it was chosen, its version, the platform, CPU features, kernels, threads, and why a device is not usable`

/** The command line: answers the exit code. */
export async function main(args: readonly string[]): Promise<number> {
  if (args.length !== 1 || args[0] !== 'doctor') {
    const asked = args.length === 0 || args[0] === 'help' || args[0] === '--help'
    console[asked ? 'log' : 'error'](usage)
    return asked ? 0 : 2
  }
  try {
    const { doctor } = await import('./doctor.js')
    console.log(doctor())
    return 0
  } catch (error) {
    console.error(isKvTideError(error) ? error.toString() : error)
    return 1
  }
}
