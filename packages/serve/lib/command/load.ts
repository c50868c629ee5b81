// Loads a model for the command line: flags to options, tiers, and the progress of a download.
import { join } from 'node:path'

import { RedisStore, type TierOptions } from 'kvtide'
import { type DownloadProgress, type DownloadRetry, TextModel, type TextModelOptions } from 'kvtide/text'

import { shown } from '../refusal.js'
import { fileText, type Flags, number, text, WrongFlag } from './flags.js'
import { keyOfFolder, secretOf } from './prefix-key.js'

/** Events of the cache that are kept for followers. */
const EVENTS = 10_000
const GIB = 2 ** 30

/** A loaded model, and what has to be disposed of behind it. */
export interface LoadedModel extends AsyncDisposable {
  readonly model: TextModel
}

/** The tiers that flags ask for. */
function tiersOf(flags: Flags) {
  const [disk, redis] = [text(flags, 'disk'), text(flags, 'redis')]
  const limit = number(flags, 'disk-limit', 0)
  const shared = secretOf('KVTIDE_PREFIX_KEY')
  if (shared === undefined && (redis !== undefined || text(flags, 'events') !== undefined))
    throw new WrongFlag(
      `--${redis === undefined ? 'events' : 'redis'} needs the variable KVTIDE_PREFIX_KEY, the same in all workers: 64 hexadecimal digits, as openssl rand -hex 32 prints`,
    )
  const prefixKey = shared ?? (disk === undefined ? undefined : keyOfFolder(disk))
  const secret = secretOf('KVTIDE_STORE_SECRET')
  const store = redis === undefined ? undefined : new RedisStore({ url: redis })
  const tiers: TierOptions = {
    ...(disk === undefined
      ? {}
      : { disk: { path: join(disk, 'blocks'), ...(limit === undefined ? {} : { limitBytes: limit * GIB }) } }),
    ...(store === undefined ? {} : { store: { store, compress: true, ...(secret === undefined ? {} : { secret }) } }),
  }
  return { prefixKey, store, tiers: Object.keys(tiers).length === 0 ? undefined : tiers }
}

/** The accuracy level of products with int4 weights. */
function levelOf(flags: Flags): 0 | 4 | undefined {
  const level = text(flags, 'accuracy-level')
  if (level === undefined) return undefined
  if (level === '0' || level === '4') return Number(level) as 0 | 4
  throw new WrongFlag(`--accuracy-level must be 0 or 4, got ${shown(level)}`)
}

/** Loads the model that flags describe. `stream` gets the progress of a download. */
export async function loadModel(name: string, flags: Flags, stream: NodeJS.WriteStream): Promise<LoadedModel> {
  const template = fileText(flags, 'template')
  const level = levelOf(flags)
  const { prefixKey, store, tiers } = tiersOf(flags)
  const threads = number(flags, 'threads', 1, true)
  const options = {
    onProgress: progressTo(stream),
    onRetry: ({ reason, pauseMs, failed, attempts }: DownloadRetry) =>
      void stream.write(
        `the Hub: ${reason}; attempt ${failed + 1} of ${attempts} in ${(pauseMs / 1000).toFixed(1)} s, or stop and add --offline for a model in the cache\n`,
      ),
    cache: {
      memoryBytes: Math.floor((number(flags, 'memory', 0.001) ?? 2) * GIB),
      maxSequences: number(flags, 'max-running', 1, true) ?? 32,
      ...(prefixKey === undefined ? {} : { prefixKey }),
      ...(tiers === undefined ? {} : { tiers }),
      ...(text(flags, 'events') === undefined ? {} : { events: EVENTS }),
    },
    ...(threads === undefined ? {} : { threads }),
    ...(level === undefined ? {} : { accuracyLevel: level }),
    ...(flags['offline'] === true ? { isOffline: true } : {}),
    ...given(flags, {
      dtype: 'dtype',
      revision: 'revision',
      'cache-folder': 'cacheFolder',
      config: 'config',
      backend: 'backend',
    }),
    ...(template === undefined ? {} : { template }),
  } as TextModelOptions
  try {
    const model = await TextModel.load(name, options)
    return {
      model,
      async [Symbol.asyncDispose]() {
        await model.dispose()
        store?.dispose()
      },
    }
  } catch (error) {
    store?.dispose()
    throw error
  }
}

/** The texts of flags that were given, under the names of options. */
function given(flags: Flags, names: Readonly<Record<string, string>>): Record<string, string> {
  const found = Object.entries(names).map(([flag, option]) => [option, text(flags, flag)] as const)
  return Object.fromEntries(found.filter((entry): entry is [string, string] => entry[1] !== undefined))
}

const MIB = 2 ** 20

/** Shows the progress of a download: in place on a terminal, and at each tenth elsewhere. */
function progressTo(stream: NodeJS.WriteStream): (progress: DownloadProgress) => void {
  let [tenth, last] = [-1, '']
  return ({ file, allLoaded, allTotal }) => {
    const part = allTotal === 0 ? 1 : allLoaded / allTotal
    const now = Math.floor(part * (stream.isTTY ? 1000 : 10))
    if (now === tenth && file === last) return
    ;[tenth, last] = [now, file]
    const line = `${(part * 100).toFixed(0).padStart(3)} % of ${(allTotal / MIB).toFixed(0)} MiB  ${file}`
    stream.write(stream.isTTY ? `\r\u001B[2K${line}${part === 1 ? '\n' : ''}` : `${line}\n`)
  }
}
