// The errors of functions that only the addon with the network has, with the command that installs it.
import { KvTideError } from '../errors/errors.js'
import { mappedFiles, platformOf } from './platform.js'
import { version } from './version.js'

const platformHere = (): string => platformOf(process.platform, process.arch, mappedFiles()).name

/** @internal The instruction for installing the addon with the network. */
export const installNet = (): string => `install it with \`npm install kvtide-net-${platformHere()}@${version}\``

/** @internal Refuses a function that only the addon with the network has, if another addon is loaded. */
export function needsNet(what: string, native: unknown): void {
  if (native !== undefined) return
  const [platform, reason] = [platformHere(), installNet()]
  throw new KvTideError(
    'BINDING_NOT_FOUND',
    `${what} needs the addon with the network, which is not installed: ${reason}`,
    { platform, reason },
  )
}
