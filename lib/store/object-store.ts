import { fields, known, type Names, optional, text } from '../border/check.js'
import { INTERNAL } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import { certificates, SharedStore } from './shared-store.js'

/** Where an object store is, and how it is used. */
export interface ObjectStoreOptions {
  /** `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. */
  readonly url: string
  /**
   * What the provider's own tools know, by its name there: `region`, `endpoint`, `access_key_id`, `secret_access_key`, `allow_http`. What is left
   * out is taken from the environment, as those tools do.
   */
  readonly options?: Readonly<Record<string, string>>
  /** Certificates in PEM that a server's may be signed by, beside the system's. */
  readonly roots?: string
}

const OPTIONS: Names<ObjectStoreOptions> = { url: 0, options: 0, roots: 0 }

/**
 * S3 and what speaks like it, Google Cloud Storage, Azure: a store that machines share. One request for each block, many at a time. Nothing is
 * connected before the first block goes there, or is looked for.
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
    const pairs = Object.entries(given === undefined ? {} : fields<Record<string, string>>('options.options', given))
    needsNet('ObjectStore', binding.NativeSharedStore.objects)
    const native = binding.NativeSharedStore.objects({
      url: text('url', url),
      options: Object.fromEntries(pairs.map(([name, value]) => [name, text(`options.options.${name}`, value)])),
      roots: optional(certificates, 'roots', roots),
    })
    super(INTERNAL, native, ObjectStore)
  }
}
