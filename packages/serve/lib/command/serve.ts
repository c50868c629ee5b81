// `kvtide-serve <folder | org/name>`: loads a model, and serves it until a signal ends the process.
import { type EventPublisher, publishEvents } from 'kvtide'

import { type KeyEntry, keysOf } from '../access/keys.js'
import type { ServerOptions } from '../options.js'
import { createServer } from '../server.js'
import { fileText, type Flags, flagsOf, number, only, SERVE_FLAGS, text, WrongFlag } from './flags.js'
import { addressOf, isOpen, listenOn } from './listen.js'
import { loadModel } from './load.js'
import { drainAtSignal } from './signals.js'

export const help = `usage: kvtide-serve <folder | org/name> [options]

the model
  --dtype NAME             the graph: f32, f16, q8, q4, .. as the files are named
  --accuracy-level N       activations of products with int4 weights: 4 for int8, 0 for floats; the graph's own by default
  --revision NAME          a branch, tag or commit of the Hub
  --cache-folder DIR       where models of the Hub are kept; the Hub's own cache by default
  --offline                use only files that are there
  --config FILE            another config.json
  --template FILE          another chat template, in Jinja
  --memory GIB             memory for keys and values; 2 by default
  --threads N              threads of a step; as many as there are cores by default
  --backend NAME           graph, parts or plain; the first that works by default
  --draft                  draft tokens by prompt lookup

the server
  --host ADDRESS           127.0.0.1 by default
  --port N                 8080 by default; 0 for any free one
  --name NAME              the name that clients send; the model's by default
  --keys FILE              API keys, one per line, with a tenant's name in front if it has one. Also KVTIDE_SERVE_KEYS, separated by commas
  --public-prompt FILE     the beginning of the system message, shared by all tenants
  --max-running N          answers that are computed at once; 32 by default
  --max-waiting N          requests that wait; 256 by default
  --max-tokens N           tokens of an answer; what the context leaves by default
  --max-body MIB           8 by default
  --timeout S              seconds of a whole request; 600 by default
  --first-token-timeout S  seconds to the first token; 120 by default
  --write-timeout S        seconds in which a client must read; 30 by default
  --drain-timeout S        seconds in which requests may end after SIGTERM; 30 by default
  --log                    a line of JSON for each request
  --no-inspector           no page about the cache under /inspector

shared prompts, across restarts and machines
  --disk DIR               keep blocks in a folder; --disk-limit GIB bounds it
  --redis URL              keep blocks in Redis or Valkey (needs KVTIDE_PREFIX_KEY)
  --events tcp://HOST:PORT publish the cache's events for kvtide-serve router, over ZeroMQ; the port behind it is for replays`

/** The API keys of the file that `--keys` names, and of `KVTIDE_SERVE_KEYS`; `undefined` without both. */
function keysOfFlags(flags: Flags): KeyEntry[] | undefined {
  const list = process.env['KVTIDE_SERVE_KEYS']
  const texts = { '--keys': fileText(flags, 'keys'), KVTIDE_SERVE_KEYS: list?.split(',').join('\n') }
  const given = Object.entries(texts).filter((entry): entry is [string, string] => entry[1] !== undefined)
  return given.length === 0 ? undefined : given.flatMap(([source, lines]) => keysFrom(source, lines))
}

function keysFrom(source: string, lines: string): KeyEntry[] {
  let entries: KeyEntry[]
  try {
    entries = keysOf(lines)
  } catch (error) {
    throw new WrongFlag(`${source}: ${(error as Error).message}`)
  }
  if (entries.length > 0) return entries
  throw new WrongFlag(`${source} has no keys, expected at least one: without ${source}, requests need no key`)
}

/** The options of a server that flags give. */
export function serverOptions(flags: Flags): Omit<ServerOptions, 'model'> {
  const mib = number(flags, 'max-body', 0.001)
  const times = {
    request: number(flags, 'timeout', 0.001),
    firstToken: number(flags, 'first-token-timeout', 0.001),
    write: number(flags, 'write-timeout', 0.001),
    drain: number(flags, 'drain-timeout', 0.001),
  }
  const options = {
    name: text(flags, 'name'),
    keys: keysOfFlags(flags),
    publicPrompt: fileText(flags, 'public-prompt')?.trimEnd(),
    maxRunning: number(flags, 'max-running', 1, true),
    maxWaiting: number(flags, 'max-waiting', 0, true),
    maxTokens: number(flags, 'max-tokens', 1, true),
    maxBodyBytes: mib === undefined ? undefined : Math.floor(mib * 2 ** 20),
    times: Object.fromEntries(Object.entries(times).filter(([, value]) => value !== undefined)),
    draft: flags['draft'] === true ? ('lookup' as const) : undefined,
    isLogging: flags['log'] === true,
    hasInspector: flags['no-inspector'] !== true,
  }
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
}

/** The address for replays: the port behind that of the events, or any free one. */
function replayOf(endpoint: string): string {
  const [, host, port] = /^(tcp:\/\/[^\s@/]+):(\d+)$/.exec(endpoint) ?? []
  if (host === undefined) throw new WrongFlag(`--events must be tcp://host:port, got ${JSON.stringify(endpoint)}`)
  return `${host}:${port === '0' ? 0 : Number(port) + 1}`
}

export async function serve(args: readonly string[]): Promise<number> {
  const { flags, names } = flagsOf(args, SERVE_FLAGS)
  const address = addressOf(flags)
  const options = serverOptions(flags)
  const endpoint = text(flags, 'events')
  const replayEndpoint = endpoint === undefined ? undefined : replayOf(endpoint)
  await using loaded = await loadModel(only(names, 'one model: a folder, or a name of the Hub'), flags, process.stderr)
  const { model } = loaded
  let published: EventPublisher | undefined
  if (endpoint !== undefined && replayEndpoint !== undefined)
    published = await publishEvents(model.model.cache, { endpoint, replayEndpoint })
  try {
    const events = published && { endpoint: published.endpoint, replayEndpoint: published.replayEndpoint }
    await using server = createServer({ ...options, model, events })
    const url = await listenOn(server, address)
    console.log(`${options.name ?? model.name} (${model.model.backend}) on ${url}/v1`)
    if (options.keys === undefined && isOpen(address))
      console.error('warning: everyone who reaches this address can use the model; --keys FILE sets API keys')
    await drainAtSignal(server)
  } finally {
    published?.dispose()
  }
  return 0
}
