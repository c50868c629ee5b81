// Object stores as a tier. The addon makes all requests; this file checks the options. A setting may be a secret, so no error shows its value.
import { fields, known, type Names, optional, text } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { INTERNAL } from '../border/owner.js'
import { nameLine } from '../errors/shown.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import { certificates, SharedStore } from './shared-store.js'

/** The location and the settings of an object store. */
export interface ObjectStoreOptions {
  /** `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. */
  readonly url: string
  /**
   * Settings under the names of the provider's own tools: `region`, `endpoint`, `access_key_id`, `secret_access_key`, `allow_http`. Settings that are missing
   * are read from the environment, as those tools do.
   */
  readonly options?: Readonly<Record<string, string>>
  /** Certificates in PEM that may sign a server's certificate, besides the system's. */
  readonly roots?: string
}

const OPTIONS: Names<ObjectStoreOptions> = { url: 0, options: 0, roots: 0 }

/** Reads a setting of the provider's. Any of them may be a secret, so none is shown. */
function setting(name: string, value: unknown): string {
  if (typeof value === 'string') return value
  throw invalid(`options.options.${nameLine(name)}`, value, 'a string', true)
}

/**
 * An object store that machines share: S3 and compatible servers, Google Cloud Storage, Azure. One request for each block, many at a time. Connects when the
 * first block is offloaded to it or looked up in it.
 *
 * @example
 * ```ts
 * import { ObjectStore } from 'kvtide'
 *
 * using store = new ObjectStore({ url: 's3://prompts/llama', options: { region: 'eu-central-1', access_key_id: 'id', secret_access_key: 'secret' } })
 * ```
 */
export class ObjectStore extends SharedStore {
  constructor(options: ObjectStoreOptions) {
    const { url, options: given, roots } = known<ObjectStoreOptions>('options', options, OPTIONS)
    const pairs = Object.entries(
      given === undefined ? {} : fields<Record<string, string>>('options.options', given),
    ).map(([name, value]) => [name, setting(name, value)] as const)
    needsNet('ObjectStore', binding.NativeStore.objects)
    const native = binding.NativeStore.objects({
      url: text('url', url),
      options: Object.fromEntries(pairs),
      roots: optional(certificates, 'roots', roots),
    })
    super(INTERNAL, native, ObjectStore)
  }
}
