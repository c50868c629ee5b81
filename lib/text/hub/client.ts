// Requests to the Hub: redirects, time-outs, attempts.
//
// Redirects are followed by hand. The token goes to the origin of the endpoint alone: the storage behind it has signed addresses of its own. Addresses in errors
// have neither a user nor the values of a query. An answer that may be better later (no connection, 408, 429, 5xx) is asked for again after a pause that doubles,
// or the one that the server asks for; each new byte of a body makes the attempts count anew.
import { setTimeout as pause } from 'node:timers/promises'

import { advised, checkSignal, isKvTideError, KvTideError } from '../../errors/errors.js'
import { line } from '../../errors/shown.js'
import { version } from '../../loading/version.js'
import type { HubSettings } from './settings.js'
import { hubFolder } from './layout.js'

const REDIRECTS = 10
const ANSWER_BYTES = 64 * 2 ** 20

/** A failure that another attempt may not meet. */
class Passing extends Error {
  /** The pause that the server asks for, in milliseconds. */
  readonly pauseMs: number | undefined

  constructor(reason: string, pauseMs?: number, options?: ErrorOptions) {
    super(reason, options)
    this.pauseMs = pauseMs
  }
}

/** @internal An answer, and the address that gave it. */
export interface HubAnswer {
  readonly response: Response
  /** The headers of the endpoint's own answer: those before a redirect to another host. */
  readonly first: Headers
}

/** @internal Asks one Hub about one model. */
export class HubClient {
  readonly settings: HubSettings

  constructor(settings: HubSettings) {
    this.settings = settings
  }

  /** The address of a route. */
  url(route: string): string {
    return `${this.settings.endpoint}/${route}`
  }

  /** Asks for JSON. */
  async json(
    url: string,
    attempts: number = this.settings.limits.attempts,
  ): Promise<{ readonly value: unknown; readonly headers: Headers }> {
    return this.attempts(attempts, async () =>
      this.timed(async (signal, alive) => {
        const { response } = await this.get(url, signal, {})
        const chunks: Uint8Array[] = []
        let bytes = 0
        for await (const chunk of this.body(response, signal, alive)) {
          bytes += chunk.length
          if (bytes > ANSWER_BYTES) throw new Passing('its answer is longer than 64 MiB')
          chunks.push(chunk)
        }
        try {
          return { value: JSON.parse(Buffer.concat(chunks).toString('utf8')) as unknown, headers: response.headers }
        } catch {
          throw new Passing('its answer is not JSON: there may be a proxy or a login page in between')
        }
      }),
    )
  }

  /** Runs `work` until it succeeds, the failure is final, or `attempts` in a row brought nothing. `progressed` makes the attempts count anew. */
  async attempts<T>(attempts: number, work: (progressed: () => void) => Promise<T>): Promise<T> {
    const { signal, limits, onRetry } = this.settings
    let failed = 0
    for (;;) {
      this.checkSignal()
      try {
        return await work(() => {
          failed = 0
        })
      } catch (error) {
        this.checkSignal()
        if (!(error instanceof Passing)) throw error
        failed += 1
        const own = limits.pauseMs * 2 ** (failed - 1) * (0.8 + 0.4 * Math.random())
        const wait = Math.max(own, error.pauseMs ?? 0)
        if (failed >= attempts || wait > limits.longestPauseMs) throw this.unavailable(error)
        onRetry?.({ reason: error.message, pauseMs: Math.round(wait), failed, attempts })
        await pause(Math.min(wait, limits.longestPauseMs), undefined, { signal }).catch(() => this.checkSignal())
      }
    }
  }

  /** Runs a request with a time-out that each call of `alive` restarts, and that the caller's signal ends as well. */
  async timed<T>(work: (signal: AbortSignal, alive: () => void) => Promise<T>): Promise<T> {
    const { signal, limits } = this.settings
    const call = new AbortController()
    let [limit, isLate] = [limits.answerMs, false]
    const end = (): void => call.abort()
    const late = (): void => {
      isLate = true
      call.abort()
    }
    let timer = setTimeout(late, limit)
    const alive = (): void => {
      clearTimeout(timer)
      limit = limits.stallMs
      timer = setTimeout(late, limit)
    }
    signal?.addEventListener('abort', end, { once: true })
    try {
      return await work(call.signal, alive)
    } catch (error) {
      if (isLate) throw new Passing(`no byte in ${limit} ms`)
      if (error instanceof Passing || isKvTideError(error)) throw error
      if (call.signal.aborted) this.checkSignal()
      throw error instanceof Stopped ? error.error : new Passing(causeOf(error), undefined, { cause: error })
    } finally {
      clearTimeout(timer)
      signal?.removeEventListener('abort', end)
      call.abort()
    }
  }

  /** Makes a request and follows its redirects. Refusals are thrown. */
  async get(url: string, signal: AbortSignal, headers: Readonly<Record<string, string>>): Promise<HubAnswer> {
    const { endpoint, authorization } = this.settings
    const own = new URL(endpoint).origin
    let [at, first] = [new URL(url), undefined as Headers | undefined]
    for (let followed = 0; followed <= REDIRECTS; followed++) {
      const isOwn = at.origin === own
      const sent = {
        ...headers,
        'accept-encoding': 'identity',
        'user-agent': `kvtide/${version}`,
        ...(isOwn && authorization !== undefined ? { authorization } : {}),
      }
      const response = await beforeAbort(signal, fetch(at.href, { redirect: 'manual', signal, headers: sent }))
      if (isOwn) first = response.headers
      if (!isRedirect(response)) {
        // A file that is shorter than it should be is asked for from the start.
        if (!response.ok && response.status !== 416) throw await this.refusal(response, at)
        return { response, first: first ?? response.headers }
      }
      response.body?.cancel().catch(() => undefined)
      const location = response.headers.get('location') ?? ''
      const next = URL.canParse(location, at.href) ? new URL(location, at) : undefined
      if (next === undefined || !/^https?:$/.test(next.protocol)) throw new Passing('it redirects to nowhere')
      if (at.protocol === 'https:' && next.protocol !== 'https:')
        throw this.unavailable(new Passing(`it redirects from https to ${next.protocol}//${next.host}`))
      if (next.username !== '' || next.password !== '')
        throw this.unavailable(new Passing(`it redirects to ${next.host} with a name or a password`))
      at = next
    }
    throw new Passing(`it redirects more than ${REDIRECTS} times`)
  }

  /** The pieces of a body. Once a request was collected, its signal no longer ends its body, so that this does. */
  async *body(response: Response, signal: AbortSignal, alive: () => void): AsyncGenerator<Uint8Array> {
    alive()
    const reader = response.body?.getReader()
    if (reader === undefined) return
    // A read that waits then ends as at the end of the body.
    const end = (): void => void reader.cancel().catch(() => undefined)
    signal.addEventListener('abort', end, { once: true })
    try {
      while (!signal.aborted) {
        const { done, value } = await reader.read()
        if (signal.aborted) break
        if (done) return
        alive()
        yield value
      }
      throw new Error('aborted')
    } finally {
      signal.removeEventListener('abort', end)
      end()
    }
  }

  /** Throws `ABORTED` if the caller's signal did. */
  checkSignal(): void {
    checkSignal(this.settings.signal)
  }

  /** The error of a Hub that cannot be reached. */
  unavailable(error: Error): KvTideError<'HUB_UNAVAILABLE'> {
    return hubUnavailable(this.settings, error.message, error.cause)
  }

  /** The error of a model, a revision or a file that is not there. */
  notFound(reason: string): KvTideError<'MODEL_NOT_FOUND'> {
    return modelNotFound(this.settings, reason)
  }

  /** The error of an answer that is a refusal. */
  private async refusal(response: Response, at: URL): Promise<Error> {
    const { status, headers } = response
    response.body?.cancel().catch(() => undefined)
    if (status === 408 || status === 425 || status === 429 || status >= 500)
      return new Passing(`${at.host} answers ${status}`, pauseOf(headers))
    if (at.origin !== new URL(this.settings.endpoint).origin)
      // The address of the storage may have expired: the endpoint gives a new one.
      return new Passing(`its storage at ${at.host} answers ${status}`)
    return this.notFound(this.reasonOf(status, headers))
  }

  private reasonOf(status: number, headers: Headers): string {
    const { model, endpoint, authorization, revision } = this.settings
    const code = headers.get('x-error-code') ?? ''
    const hasToken = authorization !== undefined
    const token = hasToken
      ? 'use a token of an account that may read it'
      : `set HF_TOKEN to a token (${endpoint}/settings/tokens)`
    if (code === 'GatedRepo') return `it is gated: accept its terms at ${endpoint}/${model}, and ${token}`
    if (code === 'RevisionNotFound') return `there is no revision ${line(revision)}`
    if (code === 'EntryNotFound') return 'the Hub no longer has one of its files'
    if (code === 'RepoNotFound' || status === 404)
      return `there is no such model, or it is private: check the name, or ${token}`
    if (status === 401 || status === 403)
      return hasToken
        ? `the token is refused (${status}): it may have expired, or ${token}`
        : `it needs a token (${status}): ${token}`
    return `the Hub answers ${status}`
  }
}

/** @internal Carries an error of the caller's own work through {@link HubClient.timed}, which takes all others for failures of the network. */
export class Stopped extends Error {
  readonly error: unknown

  constructor(error: unknown) {
    super('stopped')
    this.error = error
  }
}

/** @internal The error of a failure that another attempt may not meet. */
export function passing(reason: string): Error {
  return new Passing(reason)
}

/** @internal The error of a Hub that cannot be reached, with the folder that the files can be copied into. */
export function hubUnavailable(settings: HubSettings, cause: string, error?: unknown): KvTideError<'HUB_UNAVAILABLE'> {
  const { model, endpoint } = settings
  const [reason, folder] = [line(cause, 200), hubFolder(settings)]
  const place = folder.length > 120 ? 'the folder that details name' : folder
  const advice = `by hand: copy its files into ${place}, or pass a folder that has them (docs/get-a-model.md)`
  return new KvTideError(
    'HUB_UNAVAILABLE',
    advised(`cannot get ${model} from ${line(endpoint)}: ${reason}`, advice),
    { model, endpoint, reason, folder },
    error === undefined ? {} : { cause: error },
  )
}

/** @internal The error of a model, a revision or a graph that is not there. */
export function modelNotFound(settings: HubSettings, reason: string): KvTideError<'MODEL_NOT_FOUND'> {
  const { model, revision } = settings
  const at = revision === 'main' ? '' : ` at ${revision}`
  return new KvTideError('MODEL_NOT_FOUND', `cannot use ${model}${at}: ${reason}`, { model, revision, reason })
}

/** The result of a call, or an error when the signal aborts, even if the call then never ends. */
function beforeAbort<T>(signal: AbortSignal, call: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const end = (): void => reject(new Error('aborted'))
    signal.addEventListener('abort', end, { once: true })
    if (signal.aborted) end()
    call.then(resolve, reject).finally(() => signal.removeEventListener('abort', end))
  })
}

function isRedirect({ status, headers }: Response): boolean {
  return status >= 300 && status < 400 && status !== 304 && headers.has('location')
}

/** The pause that a server asks for: `Retry-After` in seconds or as a date, or the Hub's own `RateLimit`, whose `t` is in seconds. */
function pauseOf(headers: Headers): number | undefined {
  const after = headers.get('retry-after') ?? /(?:^|;)\s*t=(\d+)/.exec(headers.get('ratelimit') ?? '')?.[1]
  if (after === undefined || after === null) return undefined
  const ms = /^\d+$/.test(after.trim()) ? Number(after) * 1000 : Date.parse(after) - Date.now()
  return Number.isFinite(ms) && ms > 0 ? ms : undefined
}

/** The reason in an error of `fetch`, whose own message is only that it failed. */
function causeOf(error: unknown): string {
  const { cause, message } = error as {
    readonly cause?: { readonly code?: unknown; readonly message?: unknown }
    readonly message?: unknown
  }
  const code = typeof cause?.code === 'string' ? cause.code : undefined
  const text = String(cause?.message ?? message ?? 'no connection')
  return code === undefined || text.includes(code) ? text : `${text} (${code})`
}
