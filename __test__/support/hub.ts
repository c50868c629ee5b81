// A server with the routes of the Hub, and one with those of its storage, which has another origin. Repositories are given as files; a fault can be answered to each
// request: an end in the middle of a body, a body that stops, wrong bytes, a status.
//
//     GET  /api/models/<id>/revision/<revision>           { id, sha, siblings }
//     GET  /api/models/<id>/tree/<commit>?recursive=…     pages of { type, path, size, oid, lfs }, the next one in Link
//     HEAD, GET /<id>/resolve/<revision>/<path>           the file, or 302 to the storage with X-Linked-Etag, X-Linked-Size
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

import type { ExecutionContext } from 'ava'

/** The fault of an answer. */
export type HubFault =
  /** The connection is closed, or nothing more is sent, after so many bytes of the body. */
  | { readonly cut: number; readonly ignoresRange?: true }
  | { readonly stall: number }
  /** A byte of the body is another one. */
  | { readonly wrong: number }
  /** A range is ignored: the whole file comes, with 200. */
  | { readonly ignoresRange: true }
  /** The body is sent in pieces of so many bytes, with pauses of a millisecond. */
  | { readonly slow: number }
  /** Extra bytes follow the body. */
  | { readonly longer: number }
  | { readonly status: number; readonly headers?: Readonly<Record<string, string>>; readonly body?: string }

/** A request that arrived. */
export interface HubRequest {
  readonly method: string
  readonly path: string
  readonly isStorage: boolean
  /** The file of a request for one. */
  readonly file: string | undefined
  readonly headers: IncomingMessage['headers']
  /** The number of earlier requests with the same method and path. */
  readonly count: number
}

interface Repository {
  commits: Map<string, ReadonlyMap<string, Buffer>>
  refs: Map<string, string>
  isLarge: (path: string, content: Buffer) => boolean
  token?: string | undefined
  isGated: boolean
  movedTo?: string | undefined
}

export const sha256 = (content: Buffer): string => createHash('sha256').update(content).digest('hex')
export const gitSum = (content: Buffer): string =>
  createHash('sha1').update(`blob ${content.length}\0`).update(content).digest('hex')

/** Options of a repository. */
export interface RepositoryOptions {
  readonly revision?: string
  /** True for files that are in the storage; by default those of more than 1,000 bytes. */
  readonly isLarge?: (path: string, content: Buffer) => boolean
  /** The token that it needs. */
  readonly token?: string
  readonly isGated?: boolean
}

/** The Hub, as a server on the loopback. */
export class HubServer {
  readonly requests: HubRequest[] = []
  /** The fault of a request, if it has one. */
  fault: (request: HubRequest) => HubFault | undefined = () => undefined
  /** Entries of a page of the list of files. */
  pageLength = 1000
  /** Changes the list of files before it is sent. */
  listed: (entries: Record<string, unknown>[]) => unknown = entries => entries
  /** The commit that it names, if it is another one. */
  named: string | undefined
  readonly #repositories = new Map<string, Repository>()
  readonly #servers: [Server, Server]
  #ports: number[] = []

  private constructor() {
    const serve = (isStorage: boolean): Server =>
      createServer((request, response) => {
        this.#answer(request, response, isStorage).catch(() => response.destroy())
      })
    this.#servers = [serve(false), serve(true)]
  }

  /** Starts it on free ports; it is stopped after the test. */
  static async start(t: Pick<ExecutionContext, 'teardown'>): Promise<HubServer> {
    const server = new HubServer()
    for (const each of server.#servers) await new Promise<void>(resolve => each.listen(0, '127.0.0.1', resolve))
    server.#ports = server.#servers.map(each => (each.address() as AddressInfo).port)
    t.teardown(() => server.stop())
    return server
  }

  get endpoint(): string {
    return this.#address(false)
  }

  get storage(): string {
    return this.#address(true)
  }

  /** Adds a commit to a repository, and returns it. */
  add(name: string, files: Readonly<Record<string, string | Buffer>>, options: RepositoryOptions = {}): string {
    const { revision = 'main', isLarge = (_, content) => content.length > 1000, token, isGated = false } = options
    const contents = new Map(Object.entries(files).map(([path, content]) => [path, Buffer.from(content as string)]))
    const sums = [...contents].map(([path, content]) => `${path} ${gitSum(content)}\n`)
    const commit = createHash('sha1').update(name).update(sums.join('')).digest('hex')
    const repository = this.#repositories.get(name) ?? { commits: new Map(), refs: new Map(), isLarge, isGated }
    Object.assign(repository, { isLarge, token, isGated })
    repository.commits.set(commit, contents)
    repository.refs.set(revision, commit)
    this.#repositories.set(name, repository)
    return commit
  }

  /** Removes a repository. */
  remove(name: string): void {
    this.#repositories.delete(name)
  }

  /** Gives a repository another name, to which the old one redirects. */
  move(name: string, to: string): void {
    this.#repositories.set(to, this.#repositories.get(name) as Repository)
    this.#repositories.set(name, {
      commits: new Map(),
      refs: new Map(),
      isLarge: () => false,
      isGated: false,
      movedTo: to,
    })
  }

  async stop(): Promise<void> {
    for (const each of this.#servers) {
      each.closeAllConnections()
      await new Promise<void>(resolve => each.close(() => resolve()))
    }
  }

  #address(isStorage: boolean): string {
    return `http://127.0.0.1:${this.#ports[isStorage ? 1 : 0]}`
  }

  async #answer(request: IncomingMessage, response: ServerResponse, isStorage: boolean): Promise<void> {
    const { method = 'GET', url = '/', headers } = request
    const { pathname, searchParams } = new URL(url, 'http://hub')
    const resolve = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(pathname)
    const file = isStorage ? (searchParams.get('file') ?? undefined) : resolve?.[3] && decodeURIComponent(resolve[3])
    const path = isStorage ? pathname : url
    const count = this.requests.filter(
      each => each.path === path && each.method === method && each.isStorage === isStorage,
    ).length
    const asked: HubRequest = { method, path, isStorage, file, headers, count }
    this.requests.push(asked)
    const fault = this.fault(asked)
    if (fault !== undefined && 'status' in fault) {
      response.writeHead(fault.status, fault.headers).end(fault.body ?? 'a fault')
      return
    }
    if (isStorage) return this.#stored(request, response, pathname.slice(1), fault)
    const api = /^\/api\/models\/([^/]+\/[^/]+)\/(revision|tree)\/([^/]+)$/.exec(pathname)
    const [, name = '', , revision = ''] = api ?? (resolve === null ? [] : [resolve[0], resolve[1], '', resolve[2]])
    const repository = this.#repositories.get(name)
    if (repository?.movedTo !== undefined) {
      response.writeHead(307, { location: url.replace(name, repository.movedTo) }).end()
      return
    }
    const isAllowed = repository?.token === undefined || headers.authorization === `Bearer ${repository.token}`
    if (repository === undefined || (!isAllowed && !repository.isGated))
      return refuse(response, headers, 'RepoNotFound')
    if (!isAllowed && (resolve !== null || api?.[2] === 'tree')) return refuse(response, headers, 'GatedRepo')
    const commit = repository.refs.get(decodeURIComponent(revision)) ?? revision
    const files = repository.commits.get(commit)
    if (files === undefined) return refuse(response, headers, 'RevisionNotFound')
    if (resolve !== null)
      return this.#resolved(request, response, { repository, files, commit, file: file as string }, fault)
    if (api?.[2] === 'revision') {
      const siblings = [...files.keys()].map(rfilename => ({ rfilename }))
      return json(response, { id: name, modelId: name, sha: this.named ?? commit, siblings, private: false, tags: [] })
    }
    this.#tree(response, repository, files, url)
  }

  #tree(response: ServerResponse, repository: Repository, files: ReadonlyMap<string, Buffer>, url: string): void {
    const folders = new Set(
      [...files.keys()].flatMap(path =>
        path
          .split('/')
          .slice(0, -1)
          .map((_, place, all) => all.slice(0, place + 1).join('/')),
      ),
    )
    const entries: Record<string, unknown>[] = [
      ...[...folders].map(path => ({ type: 'directory', oid: '0'.repeat(40), size: 0, path })),
      ...[...files].map(([path, content]) => ({
        type: 'file',
        oid: gitSum(content),
        size: content.length,
        path,
        ...(repository.isLarge(path, content)
          ? { lfs: { oid: sha256(content), size: content.length, pointerSize: 134 } }
          : {}),
      })),
    ]
    const listed = this.listed(entries)
    if (!Array.isArray(listed)) return json(response, listed)
    const next = new URL(url, 'http://hub')
    const start = Number(next.searchParams.get('cursor') ?? 0)
    next.searchParams.set('cursor', String(start + this.pageLength))
    const isLast = start + this.pageLength >= listed.length
    // The Hub names itself here, also behind a mirror.
    const link = isLast ? {} : { link: `<https://huggingface.co${next.pathname}${next.search}>; rel="next"` }
    json(response, listed.slice(start, start + this.pageLength), link)
  }

  #resolved(
    request: IncomingMessage,
    response: ServerResponse,
    {
      repository,
      files,
      commit,
      file,
    }: { repository: Repository; files: ReadonlyMap<string, Buffer>; commit: string; file: string },
    fault: HubFault | undefined,
  ): void {
    const content = files.get(file)
    const about = { 'x-repo-commit': commit, 'accept-ranges': 'bytes' }
    if (content === undefined) return refuse(response, request.headers, 'EntryNotFound', about)
    if (!repository.isLarge(file, content))
      return send(request, response, content, { ...about, etag: `"${gitSum(content)}"` }, fault)
    const sum = sha256(content)
    this.#blobs.set(sum, content)
    response
      .writeHead(302, {
        ...about,
        location: `${this.storage}/${sum}?signature=of-the-storage&file=${encodeURIComponent(file)}`,
        'x-linked-etag': `"${sum}"`,
        'x-linked-size': String(content.length),
      })
      .end()
  }

  readonly #blobs = new Map<string, Buffer>()

  #stored(request: IncomingMessage, response: ServerResponse, sum: string, fault: HubFault | undefined): void {
    const content = this.#blobs.get(sum)
    if (content === undefined || request.headers.authorization !== undefined) {
      response.writeHead(400).end('the storage takes no tokens')
      return
    }
    send(request, response, content, { etag: '"an-etag-of-the-storage"', 'accept-ranges': 'bytes' }, fault)
  }
}

function json(response: ServerResponse, value: unknown, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(200, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(value))
}

function refuse(
  response: ServerResponse,
  { authorization }: IncomingMessage['headers'],
  code: string,
  headers: Readonly<Record<string, string>> = {},
): void {
  // The Hub does not tell a stranger which repositories exist.
  const status =
    code === 'GatedRepo'
      ? authorization === undefined
        ? 401
        : 403
      : code === 'RepoNotFound' && authorization === undefined
        ? 401
        : 404
  response.writeHead(status, { 'x-error-code': code, ...headers }).end(JSON.stringify({ error: code }))
}

/** Sends a file, or the part that is asked for, with its fault. */
function send(
  request: IncomingMessage,
  response: ServerResponse,
  content: Buffer,
  headers: Readonly<Record<string, string>>,
  fault: HubFault | undefined,
): void {
  const asked = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '')
  const isPart = asked !== null && !(fault !== undefined && 'ignoresRange' in fault)
  const start = isPart ? Number(asked[1]) : 0
  if (isPart && start >= content.length) {
    response.writeHead(416, { 'content-range': `bytes */${content.length}` }).end()
    return
  }
  const body = Buffer.from(content.subarray(start, isPart && asked[2] !== '' ? Number(asked[2]) + 1 : undefined))
  const range = isPart ? { 'content-range': `bytes ${start}-${start + body.length - 1}/${content.length}` } : {}
  const isLonger = fault !== undefined && 'longer' in fault
  response.writeHead(isPart ? 206 : 200, {
    ...headers,
    ...range,
    ...(isLonger ? {} : { 'content-length': String(body.length) }),
  })
  if (request.method === 'HEAD') {
    response.end()
    return
  }
  if (fault === undefined || 'status' in fault) response.end(body)
  else if ('longer' in fault) response.end(Buffer.concat([body, Buffer.alloc(fault.longer)]))
  else if ('wrong' in fault) {
    const place = fault.wrong % Math.max(body.length, 1)
    if (body.length > 0) body[place] = (body[place] as number) ^ 1
    response.end(body)
  } else if ('slow' in fault) slowly(response, body, fault.slow)
  else if ('cut' in fault) response.write(body.subarray(0, fault.cut), () => setTimeout(() => response.destroy(), 5))
  else if ('ignoresRange' in fault) response.end(body)
  else {
    response.flushHeaders()
    response.write(body.subarray(0, fault.stall))
  }
}

function slowly(response: ServerResponse, body: Buffer, bytes: number): void {
  const next = (start: number): void => {
    if (start >= body.length) response.end()
    else response.write(body.subarray(start, start + bytes), () => setTimeout(next, 1, start + bytes))
  }
  next(0)
}
