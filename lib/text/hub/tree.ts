// The Hub's answers: the commit of a revision, and the list of its files. Everything in them is checked before it is used: sums and commits become names of files.
import type { HubClient } from './client.js'
import { corrupt, isCommit } from './name.js'

/** @internal A file of a repository. */
export interface HubFile {
  readonly path: string
  readonly size: number
  /** The name of its content: the SHA-256 of a large file, the SHA-1 that git gives to a small one. */
  readonly sum: string
}

const SHA256 = /^[0-9a-f]{64}$/
const PAGES = 1000

const encoded = (path: string): string => path.split('/').map(encodeURIComponent).join('/')

/** @internal Asks for the commit of a revision. */
export async function askCommit(client: HubClient, attempts?: number): Promise<string> {
  const { model, revision } = client.settings
  const route = `api/models/${model}/revision/${encodeURIComponent(revision)}`
  const { value } = await client.json(client.url(route), attempts)
  const sha = (value as { readonly sha?: unknown } | null)?.sha
  if (typeof sha === 'string' && isCommit(sha)) return sha
  throw corrupt(`the commit of ${model}`, String(sha), '40 hexadecimal digits')
}

/** @internal Asks for the files of a commit, in as many pages as it takes. */
export async function askFiles(client: HubClient, commit: string): Promise<ReadonlyMap<string, HubFile>> {
  const route = client.url(`api/models/${client.settings.model}/tree/${commit}`)
  const files = new Map<string, HubFile>()
  let query = '?recursive=true'
  for (let page = 0; page < PAGES; page++) {
    const { value, headers } = await client.json(route + query)
    if (!Array.isArray(value)) throw corrupt('the list of files', typeof value, 'an array')
    for (const entry of value as unknown[]) {
      const file = fileOf(entry)
      if (file !== undefined) files.set(file.path, file)
    }
    // A mirror may pass on the address of the next page as the Hub wrote it: only its query is used.
    const next = /<([^>]*)>\s*;\s*rel="?next"?/.exec(headers.get('link') ?? '')?.[1]
    if (next === undefined || !URL.canParse(next, route)) return files
    query = new URL(next, route).search
  }
  return files
}

/** A file of the list; `undefined` for a folder. */
function fileOf(entry: unknown): HubFile | undefined {
  if (typeof entry !== 'object' || entry === null)
    throw corrupt('an entry of the list of files', String(entry), 'an object')
  const { type, path, size, oid, lfs } = entry as Readonly<Record<string, unknown>>
  if (type !== 'file') return undefined
  if (typeof path !== 'string') throw corrupt('the name of a file', typeof path, 'a string')
  const large = lfs as { readonly oid?: unknown; readonly size?: unknown } | null | undefined
  const [sum, bytes] = large === undefined || large === null ? [oid, size] : [large.oid, large.size]
  if (typeof bytes !== 'number' || !Number.isSafeInteger(bytes) || bytes < 0)
    throw corrupt(`the size of ${path}`, String(bytes), 'a number of bytes')
  const isSum = typeof sum === 'string' && (large === undefined || large === null ? isCommit(sum) : SHA256.test(sum))
  if (!isSum) throw corrupt(`the sum of ${path}`, String(sum), 'hexadecimal digits of a SHA-256 or SHA-1')
  return { path, size: bytes, sum }
}

/** @internal The address of a file. */
export function fileUrl(client: HubClient, commit: string, path: string): string {
  return client.url(`${client.settings.model}/resolve/${commit}/${encoded(path)}`)
}
