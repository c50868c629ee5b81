import { KvTideError } from '../border/errors.js'
import { mappedFiles, platformOf } from './platform.js'
import { version } from './version.js'

const platformHere = (): string => platformOf(process.platform, process.arch, mappedFiles()).name

/** @internal How one gets the addon with the network. */
export const installNet = (): string => `install it with \`npm install kvtide-net-${platformHere()}@${version}\``

/** @internal Refuses what only the addon with the network has, where another one runs. */
export function needsNet(what: string, native: unknown): void {
  if (native !== undefined) return
  const [platform, reason] = [platformHere(), installNet()]
  throw new KvTideError('BINDING_NOT_FOUND', `${what} needs the addon that speaks to others over the network, which is not there: ${reason}`, { platform, reason })
}
