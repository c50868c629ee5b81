// The Hub's cache folder, in the layout that huggingface_hub made: other tools find what is downloaded here, and their files are found here.
//
//     <cache>/models--org--name/refs/main                          the commit that a branch was at
//     <cache>/models--org--name/blobs/<sum>                        content, under its SHA-256, or its git SHA-1 for small files
//     <cache>/models--org--name/blobs/<sum>.kvtide.incomplete      content that is not all there
//     <cache>/models--org--name/snapshots/<commit>/onnx/model.onnx -> ../../../blobs/<sum>
//     <cache>/.locks/models--org--name/<sum>.kvtide.lock           the download that writes it
//
// A blob gets its name when its sum is right, a snapshot its graph when everything else is there, a branch its commit when the snapshot is complete. Each step is
// one rename, so an end at any moment leaves what was complete before. Nothing is written where everything is there already: the folder may be read-only.
import { copyFile, link, mkdir, open, readdir, readFile, readlink, rename, rm, stat, symlink } from 'node:fs/promises'
import { randomBytes } from 'node:crypto'
import { basename, dirname, join, posix, relative, sep } from 'node:path'

import { KvTideError } from '../../errors/errors.js'
import { line } from '../../errors/shown.js'
import { isCommit } from './name.js'

/** @internal The settings that a place in the cache depends on. */
export interface CachePlace {
  readonly cacheFolder: string
  readonly model: string
}

const nameOf = ({ model }: CachePlace): string => `models--${model.replaceAll('/', '--')}`

/** @internal The folder of a model in the cache. */
export function hubFolder(place: CachePlace): string {
  return join(place.cacheFolder, nameOf(place))
}

/** @internal The folder of locks of a model. */
export function lockFolder(place: CachePlace): string {
  return join(place.cacheFolder, '.locks', nameOf(place))
}

/** @internal The path of a blob. */
export function blobPath(place: CachePlace, sum: string): string {
  return join(hubFolder(place), 'blobs', sum)
}

/** @internal The folder of a commit. */
export function snapshotFolder(place: CachePlace, commit: string): string {
  return join(hubFolder(place), 'snapshots', commit)
}

/** @internal The path of a file that the repository names with `/`. */
export function pathIn(folder: string, path: string): string {
  return join(folder, ...path.split('/'))
}

/** @internal The commit that a revision was at; `undefined` if the cache does not know it. */
export async function commitOf(place: CachePlace, revision: string): Promise<string | undefined> {
  if (isCommit(revision)) return revision
  try {
    const text = await readFile(pathIn(join(hubFolder(place), 'refs'), revision), 'utf8')
    return isCommit(text.trim()) ? text.trim() : undefined
  } catch {
    return undefined
  }
}

/** @internal Records the commit of a revision. A cache folder that is read-only keeps its own. */
export async function writeCommit(place: CachePlace, revision: string, commit: string): Promise<void> {
  if (isCommit(revision) || (await commitOf(place, revision)) === commit) return
  const file = pathIn(join(hubFolder(place), 'refs'), revision)
  try {
    await mkdir(dirname(file), { recursive: true })
    const part = `${file}.${randomBytes(4).toString('hex')}.incomplete`
    const handle = await open(part, 'wx')
    try {
      await handle.writeFile(commit)
    } finally {
      await handle.close()
    }
    await rename(part, file)
  } catch (error) {
    if (!isDenied(error)) throw ioError('write', file, error)
  }
}

/** @internal The files of a snapshot that are really there, with `/` between the parts of their names. */
export async function filesOf(folder: string): Promise<string[]> {
  const found: string[] = []
  const look = async (at: string, name: string): Promise<void> => {
    for (const entry of await readdir(at, { withFileTypes: true }).catch(() => [])) {
      const [path, own] = [join(at, entry.name), posix.join(name, entry.name)]
      if (entry.isDirectory()) await look(path, own)
      else if ((await sizeOf(path)) !== undefined) found.push(own)
    }
  }
  await look(folder, '')
  return found.toSorted()
}

/** @internal The size of a file, with links followed; `undefined` if there is none. */
export async function sizeOf(path: string): Promise<number | undefined> {
  try {
    const found = await stat(path)
    return found.isFile() ? found.size : undefined
  } catch {
    return undefined
  }
}

/**
 * @internal Puts a blob into a snapshot: by a relative link, as huggingface_hub does, so that the cache folder can be moved. Where links of that kind are refused (Windows
 * without its developer mode, exFAT), by a hard link, which takes no room either, else by a copy.
 */
export async function placeFile(blob: string, file: string, size: number, hasSymlinks: boolean): Promise<void> {
  if (await isPlaced(file, basename(blob), size)) return
  await mkdir(dirname(file), { recursive: true }).catch(error => {
    throw ioError('write', dirname(file), error)
  })
  const part = `${file}.${randomBytes(4).toString('hex')}.incomplete`
  try {
    const target = relative(dirname(file), blob).replaceAll(sep, '/')
    if (!(await linked(target, blob, part, hasSymlinks))) await copyFile(blob, part)
    await rename(part, file)
  } catch (error) {
    throw ioError('write', file, error)
  } finally {
    await rm(part, { force: true }).catch(() => undefined)
  }
}

/** @internal True if a snapshot has a file: one of the right size, or a link to the blob. Where links are refused, huggingface_hub moves blobs into snapshots. */
export async function isPlaced(file: string, sum: string, size: number): Promise<boolean> {
  if ((await sizeOf(file)) !== size) return false
  try {
    return (await readlink(file)).split(/[\\/]/).at(-1) === sum
  } catch {
    return true
  }
}

async function linked(target: string, blob: string, part: string, hasSymlinks: boolean): Promise<boolean> {
  const ways = [...(hasSymlinks ? [() => symlink(target, part, 'file')] : []), () => link(blob, part)]
  for (const way of ways) {
    try {
      await way()
      return true
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'ENOSPC' || code === 'EROFS' || code === 'EDQUOT') throw error
    }
  }
  return false
}

const DENIED = new Set(['EACCES', 'EPERM', 'EROFS'])

function isDenied(error: unknown): boolean {
  return DENIED.has(String((error as NodeJS.ErrnoException).code))
}

/** @internal The error of a file of the cache, with what to do. */
export function ioError(operation: string, path: string, error: unknown): KvTideError<'IO_ERROR'> {
  const code = String((error as NodeJS.ErrnoException).code ?? '')
  const text = line(String((error as Error).message), 120)
  const reason = isDenied(error)
    ? `it is not writable (${code}): set HF_HUB_CACHE or cacheFolder to a folder that is`
    : ['ENOSPC', 'EDQUOT', 'EFBIG'].includes(code)
      ? `there is no room left (${code}): free some and call again, which resumes the download`
      : text
  return new KvTideError(
    'IO_ERROR',
    `cannot ${operation} ${path}: ${reason}`,
    { operation, path, reason },
    { cause: error },
  )
}
