// `kvtide-serve router`: a front for several workers.
import { createRouter } from '../router/router.js'
import { flagsOf, LISTEN_FLAGS, number, WrongFlag } from './flags.js'
import { addressOf, listenOn } from './listen.js'
import { drainAtSignal } from './signals.js'

export const help = `usage: kvtide-serve router --worker http://host:port --worker .. [options]

Sends each prompt to the worker that has the longest prefix of it cached, weighed against the work that waits there. Start the workers with --events and
with the same KVTIDE_PREFIX_KEY and the same keys. The router itself needs no model, no keys and no secrets.

  --worker URL        a worker; once for each
  --host ADDRESS      127.0.0.1 by default
  --port N            8080 by default
  --max-body MIB      8 by default
  --drain-timeout S   seconds in which requests may end after SIGTERM; 30 by default
  --log               a line of JSON for each request`

export async function router(args: readonly string[]): Promise<number> {
  const { flags, names } = flagsOf(args, { ...LISTEN_FLAGS, worker: { type: 'string', multiple: true } })
  const workers = [...((flags['worker'] as readonly string[] | undefined) ?? []), ...names]
  // The address may contain a password, and is not shown.
  const wrong = workers.findIndex(url => !URL.canParse(url) || new URL(url).protocol !== 'http:')
  if (wrong >= 0)
    throw new WrongFlag(`--worker must be http://host:port: worker ${wrong + 1} of ${workers.length} is not`)
  if (workers.length === 0) throw new WrongFlag('expected at least one --worker http://host:port')
  const address = addressOf(flags)
  const mib = number(flags, 'max-body', 0.001)
  const drain = number(flags, 'drain-timeout', 0.001)
  await using server = createRouter({
    workers,
    isLogging: flags['log'] === true,
    ...(mib === undefined ? {} : { maxBodyBytes: Math.floor(mib * 2 ** 20) }),
    ...(drain === undefined ? {} : { drainSeconds: drain }),
  })
  console.log(`router for ${workers.length} workers on ${await listenOn(server, address)}/v1`)
  await drainAtSignal(server)
  return 0
}
