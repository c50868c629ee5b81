// Options of downloads, and the environment that they default to: the variables of huggingface_hub, read at each call. A token is only ever in the header
// of a request to the endpoint: no error, warning or statistic has it.
import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

import { flag, known, type Names, optional } from '../../errors/check.js'
import { invalid } from '../../errors/errors.js'
import { isAbortSignal } from '../../border/stop-signal.js'
import type { GraphDType } from '../../onnx/model-folder.js'
import { DTYPES } from './graphs.js'
import { isSafePath, isRevision, parseName } from './name.js'

/** The progress of a download. Files that are in the cache already don't count. */
export interface DownloadProgress {
  /** The file, as the repository names it. */
  readonly file: string
  /** Bytes of this file that are on the disk, and its size. */
  readonly loaded: number
  readonly total: number
  /** Bytes of all files to download that are on the disk, and their size. */
  readonly allLoaded: number
  readonly allTotal: number
}

/** A request to the Hub that failed and will be made again. */
export interface DownloadRetry {
  /** The reason, without tokens and signed addresses. */
  readonly reason: string
  /** The pause until the next attempt, in milliseconds. */
  readonly pauseMs: number
  /** The number of attempts that failed in a row, and the number after which the download ends with `HUB_UNAVAILABLE`. */
  readonly failed: number
  readonly attempts: number
}

/** Options of {@link downloadModel}. */
export interface DownloadOptions {
  /** A branch, a tag or a commit; by default that of the name, then `main`. A commit that is in the cache needs no network. */
  readonly revision?: string
  /** The graph, by its weights: `f32`, `f16`, `q8`, `q4`, ... By default the first of `q4`, `q8`, `f16` and `f32` that there is. */
  readonly dtype?: GraphDType
  /** The folder of the graph inside the repository, for repositories that have several models: also `'org/name/folder'`. */
  readonly folder?: string
  /** The cache folder, in the Hub's own layout; by default `HF_HUB_CACHE`, then `HF_HOME/hub`, then `~/.cache/huggingface/hub`. */
  readonly cacheFolder?: string
  /** True to use only the cache, without a request; by default `HF_HUB_OFFLINE`. */
  readonly isOffline?: boolean
  /** The token; by default `HF_TOKEN`, then the file that `hf auth login` writes. `false` sends none. */
  readonly token?: string | false
  /** The address of the Hub or of a mirror; by default `HF_ENDPOINT`, then `https://huggingface.co`. */
  readonly endpoint?: string
  /** Called at most twenty times a second, and at the end of each file. If it throws, the download ends with that error. */
  readonly onProgress?: (progress: DownloadProgress) => void
  /** Called before each pause in front of another attempt. If it throws, the download ends with that error. */
  readonly onRetry?: (retry: DownloadRetry) => void
  /** Aborts the download with `ABORTED`. The next call resumes it. */
  readonly signal?: AbortSignal
}

/** @internal Times and numbers of attempts. */
export interface HubLimits {
  /** The maximum time until an answer begins. */
  readonly answerMs: number
  /** The maximum time without a byte in a body. */
  readonly stallMs: number
  /** The pause before the second attempt; it doubles with each one. */
  readonly pauseMs: number
  /** The longest pause that a server may ask for. */
  readonly longestPauseMs: number
  /** The number of attempts without a new byte. */
  readonly attempts: number
  /** The time without a sign of life after which a lock is abandoned. */
  readonly lockMs: number
}

/** @internal What a download needs to know. */
export interface HubSettings {
  readonly model: string
  readonly revision: string
  readonly folder: string | undefined
  readonly dtype: GraphDType | undefined
  readonly cacheFolder: string
  readonly isOffline: boolean
  /** Without a slash at its end, without a user. */
  readonly endpoint: string
  /** The header `authorization` for the endpoint. */
  readonly authorization: string | undefined
  readonly hasSymlinks: boolean
  readonly onProgress: ((progress: DownloadProgress) => void) | undefined
  readonly onRetry: ((retry: DownloadRetry) => void) | undefined
  readonly signal: AbortSignal | undefined
  readonly limits: HubLimits
}

/** @internal The names of the options of a download. */
export const DOWNLOAD: Names<DownloadOptions> = {
  revision: 0,
  dtype: 0,
  folder: 0,
  cacheFolder: 0,
  isOffline: 0,
  token: 0,
  endpoint: 0,
  onProgress: 0,
  onRetry: 0,
  signal: 0,
}

const HUB = 'https://huggingface.co'

/** @internal The options of a download that were given, each read once and checked. The environment has the others. */
export function readDownload(given: unknown) {
  const options = known<DownloadOptions>('options', given, DOWNLOAD)
  const { revision, folder, dtype, cacheFolder, isOffline, token, endpoint, onProgress, onRetry, signal } = options
  if (signal !== undefined && !isAbortSignal(signal)) throw invalid('signal', signal, 'an AbortSignal')
  return {
    revision: optional(readRevision, 'revision', revision),
    folder: optional(readFolder, 'folder', folder),
    dtype: optional(readDType, 'dtype', dtype),
    cacheFolder: optional(readCacheFolder, 'cacheFolder', cacheFolder),
    isOffline: optional(flag, 'isOffline', isOffline),
    token: token === false ? token : optional(checkedToken, 'token', token),
    address: optional(readAddress, 'endpoint', endpoint),
    onProgress: optional(readCallback, 'onProgress', onProgress) as DownloadOptions['onProgress'],
    onRetry: optional(readCallback, 'onRetry', onRetry) as DownloadOptions['onRetry'],
    signal,
  }
}

/** @internal Reads a model's name and the options of its download. */
export function readSettings(name: unknown, given: unknown, limits: Partial<HubLimits> = {}): HubSettings {
  const { address, token, ...own } = readDownload(given === undefined ? {} : given)
  const parsed = parseName(name)
  const { endpoint, user } = address ?? readAddress('HF_ENDPOINT', variable('HF_ENDPOINT') ?? HUB)
  const secret = user === undefined ? (token ?? foundToken()) : false
  return {
    model: parsed.model,
    revision: own.revision ?? parsed.revision ?? 'main',
    folder: own.folder ?? parsed.folder,
    dtype: own.dtype,
    cacheFolder: own.cacheFolder ?? foundCacheFolder(),
    isOffline: own.isOffline ?? isTrue(variable('HF_HUB_OFFLINE') ?? variable('TRANSFORMERS_OFFLINE')),
    endpoint,
    authorization: user ?? (typeof secret === 'string' ? `Bearer ${secret}` : undefined),
    hasSymlinks: !isTrue(variable('HF_HUB_DISABLE_SYMLINKS')),
    onProgress: own.onProgress,
    onRetry: own.onRetry,
    signal: own.signal,
    limits: { ...LIMITS, ...timeouts(), ...limits },
  }
}

function readRevision(argument: string, value: unknown): string {
  if (typeof value === 'string' && isRevision(value)) return value
  throw invalid(argument, value, 'a branch, a tag or a commit')
}

function readFolder(argument: string, value: unknown): string {
  if (typeof value === 'string' && isSafePath(value)) return value
  throw invalid(argument, value, 'a folder inside the repository, without a slash at its ends')
}

function readDType(argument: string, value: unknown): GraphDType {
  if (typeof value === 'string' && Object.hasOwn(DTYPES, value)) return value as GraphDType
  throw invalid(argument, value, `one of ${Object.keys(DTYPES).join(', ')}`)
}

function readCallback(argument: string, value: unknown): unknown {
  if (typeof value === 'function') return value
  throw invalid(argument, value, 'a function')
}

const LIMITS: HubLimits = {
  answerMs: 10_000,
  stallMs: 30_000,
  pauseMs: 500,
  longestPauseMs: 300_000,
  attempts: 6,
  lockMs: 15_000,
}

/** The longest time of a timer: a timer of a longer time ends at once. */
const LONGEST_MS = 2 ** 31 - 1

const timerMs = (seconds: number): number => Math.min(seconds * 1000, LONGEST_MS)

/** Time-outs in seconds, in the variables of huggingface_hub. */
function timeouts(): Partial<HubLimits> {
  const [answer, stall] = ['HF_HUB_ETAG_TIMEOUT', 'HF_HUB_DOWNLOAD_TIMEOUT'].map(name => Number(variable(name))) as [
    number,
    number,
  ]
  return { ...(answer > 0 ? { answerMs: timerMs(answer) } : {}), ...(stall > 0 ? { stallMs: timerMs(stall) } : {}) }
}

/** A variable of the environment; an empty one counts as missing. */
function variable(name: string): string | undefined {
  const value = process.env[name]
  return value === undefined || value === '' ? undefined : value
}

function isTrue(value: string | undefined): boolean {
  return value !== undefined && /^(?:1|on|yes|true)$/i.test(value)
}

/** The address of a Hub. A user in it becomes a header, since `fetch` refuses such addresses. */
function readAddress(
  argument: string,
  value: unknown,
): { readonly endpoint: string; readonly user: string | undefined } {
  const url = typeof value === 'string' && URL.canParse(value) ? new URL(value) : undefined
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.search !== '' || url.hash !== '')
    throw invalid(argument, value, 'the address of a Hub: https://…', argument === 'HF_ENDPOINT')
  const endpoint = `${url.origin}${url.pathname}`.replace(/\/+$/, '')
  const { username, password } = url
  if (username + password === '') return { endpoint, user: undefined }
  try {
    const user = Buffer.from(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`)
    return { endpoint, user: `Basic ${user.toString('base64')}` }
  } catch {
    throw invalid(argument, value, 'an address whose user and password are UTF-8 behind their %', true)
  }
}

/** The token in the environment. */
function foundToken(): string | undefined {
  if (isTrue(variable('HF_HUB_DISABLE_IMPLICIT_TOKEN'))) return undefined
  for (const name of ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN']) {
    const value = variable(name)?.trim()
    if (value !== undefined && value !== '') return checkedToken(name, value)
  }
  const file = variable('HF_TOKEN_PATH') ?? join(hubHome(), 'token')
  try {
    const value = readFileSync(expanded(file), 'utf8').trim()
    return value === '' ? undefined : checkedToken('the token in the file that HF_TOKEN_PATH names: token', value)
  } catch (error) {
    if ((error as { readonly code?: string }).code === 'INVALID_ARGUMENT') throw error
    return undefined
  }
}

/** Checks a token before it becomes a header: `fetch` would show a wrong one in its error. */
function checkedToken(argument: string, value: unknown): string {
  if (typeof value === 'string' && /^[\u0021-\u007E]{1,4096}$/.test(value)) return value
  throw invalid(argument, value, 'a token without spaces', true)
}

function readCacheFolder(argument: string, value: unknown): string {
  if (typeof value === 'string' && value !== '' && !value.includes('\0')) return resolve(value)
  throw invalid(argument, value, 'the path of a folder')
}

function foundCacheFolder(): string {
  const named = variable('HF_HUB_CACHE') ?? variable('HUGGINGFACE_HUB_CACHE')
  return named === undefined ? join(hubHome(), 'hub') : resolve(expanded(named))
}

function hubHome(): string {
  const named = variable('HF_HOME')
  if (named !== undefined) return resolve(expanded(named))
  const cache = variable('XDG_CACHE_HOME')
  return join(cache === undefined ? join(homedir(), '.cache') : resolve(expanded(cache)), 'huggingface')
}

/** A path with `~` and variables, as huggingface_hub expands them. */
function expanded(path: string): string {
  const named = path.replaceAll(/\$(?:\{(\w+)\}|(\w+))/g, (whole, one?: string, other?: string) => {
    return process.env[one ?? other ?? ''] ?? whole
  })
  return named.replace(/^~(?=$|[\\/])/, homedir())
}
