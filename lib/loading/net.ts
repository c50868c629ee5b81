import { KvTideError } from '../border/errors.js'
import { mappedFiles, platformOf } from './platform.js'
import { version } from './version.js'

/** @internal Refuses what only the addon with the network has, where another one runs. */
export function needsNet(what: string, native: unknown): void {
  if (native !== undefined) return
  const { name: platform } = platformOf(process.platform, process.arch, mappedFiles())
  const reason = `install it with \`npm install kvtide-net-${platform}@${version}\``
  throw new KvTideError('BINDING_NOT_FOUND', `${what} needs the addon that speaks to others over the network, which is not there: ${reason}`, { platform, reason })
}
