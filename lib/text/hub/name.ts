// Names on the Hub and names of files from it. A server chooses the names of files, so each one is checked before it becomes a path: on any system, a name that
// could leave its folder, or that some system reads as something else than a file, is refused.
import { invalid, KvTideError } from '../../errors/errors.js'
import { line } from '../../errors/shown.js'

/** @internal A model's name on the Hub, in its parts. */
export interface HubName {
  /** `org/name`. */
  readonly model: string
  /** The folder inside the repository: `org/name/folder`. */
  readonly folder: string | undefined
  /** `org/name@revision`. */
  readonly revision: string | undefined
}

/** A user, an organisation or a repository. The Hub allows no `--` and no `..`: the cache folder separates them by `--`. */
const PART = /^(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?$/
/** A branch, a tag, a commit, or a reference of a pull request. */
const REVISION = /^[\w.+-]+(?:\/[\w.+-]+)*$/
const COMMIT = /^[0-9a-f]{40}$/
const NAME = "a model's name on the Hub: 'org/name', 'org/name@revision' or 'org/name/folder'"

/** @internal Reads `org/name`, with an optional folder behind it and an optional revision behind `@`. */
export function parseName(given: unknown): HubName {
  if (typeof given !== 'string' || given.length > 1000) throw invalid('model', given, NAME)
  const [path = '', revision, ...rest] = given.split('@')
  const [org = '', name = '', ...folders] = path.split('/')
  const isName = rest.length === 0 && PART.test(org) && PART.test(name) && !name.endsWith('.git')
  const folder = folders.length === 0 ? undefined : folders.join('/')
  if (!isName || (revision !== undefined && !isRevision(revision)) || (folder !== undefined && !isSafePath(folder)))
    throw invalid('model', given, NAME)
  return { model: `${org}/${name}`, folder, revision }
}

/** @internal True for a text that {@link parseName} reads. A path that exists may look the same: check for it first. */
export function isHubName(text: string): boolean {
  try {
    parseName(text)
    return true
  } catch {
    return false
  }
}

/** @internal True for a branch, a tag or a commit, which is also a path below `refs`. */
export function isRevision(text: string): boolean {
  return text.length <= 200 && REVISION.test(text) && isSafePath(text)
}

/** @internal True for a commit: content that never changes. */
export function isCommit(text: string): boolean {
  return COMMIT.test(text)
}

/** Characters that are no part of a file's name on some system, or that end a line. */
// oxlint-disable-next-line no-control-regex
const ODD = /[\u0000-\u001F\u007F-\u009F\u2028\u2029\u202A-\u202E\u2066-\u2069<>:"|?*\\]|\p{Surrogate}/u
/** Names that are devices on Windows, with any suffix. */
const DEVICE = /^(?:con|prn|aux|nul|com\d|lpt\d|conin\$|conout\$)(?:\.|$)/i
const SEGMENT_BYTES = 200
const PATH_BYTES = 1000

/** @internal True if a file's name on the Hub, with `/` between its parts, stays below the folder it is joined to, on any system. */
export function isSafePath(path: string): boolean {
  if (path === '' || Buffer.byteLength(path) > PATH_BYTES) return false
  return path.split('/').every(isSafeSegment)
}

function isSafeSegment(part: string): boolean {
  return (
    part !== '' &&
    // Also `.` and `..`: Windows drops a dot at the end of a name.
    !/[. ]$|^ /.test(part) &&
    !ODD.test(part) &&
    !DEVICE.test(part) &&
    Buffer.byteLength(part) <= SEGMENT_BYTES
  )
}

/** @internal The error of something in an answer of the Hub that cannot be right. */
export function corrupt(part: string, value: string, expected: string): KvTideError<'CORRUPT'> {
  const shown = line(value)
  return new KvTideError('CORRUPT', `${part} is ${shown === '' ? 'empty' : shown}, expected ${expected}`, {
    part,
    value: shown,
    expected,
  })
}
