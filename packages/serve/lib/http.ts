// The HTTP side of the servers of this package, on Fastify: bodies, errors in OpenAI's form, limits of time, and one line of log per request.
import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'

import { fastify, type FastifyInstance, type FastifyReply, type FastifyRequest, LogController } from 'fastify'

import { bytesOf, jsonOf } from './body.js'
import { Refusal, refusalOf } from './refusal.js'
import { timerMs } from './times.js'

/** The limits of an HTTP server. */
export interface HttpLimits {
  readonly maxBodyBytes: number
  /** The time for receiving a request, in seconds. */
  readonly bodySeconds: number
  readonly isLogging: boolean
  /** True to leave bodies as bytes. */
  readonly isRaw?: boolean
  /** Called for each refused request. */
  readonly onRefused?: (status: number) => void
}

/** The time for which an idle connection is kept, in milliseconds: longer than the 60 seconds of common load balancers. */
const KEEP_ALIVE_MS = 75_000

/** Request bodies of more bytes are not read to their end after an error. */
const KEPT_BODY_MAX = 2 ** 20

const REQUEST_ID = /^[\w.:-]{1,128}$/

/** Returns the path of a request without its query, which may contain anything. */
export const pathOf = (url: string): string => (/^[^?#]*/.exec(url)?.[0] ?? '').slice(0, 200)

/** The OpenAI name of the prompt of an endpoint. */
const promptParam = (url: string): string => (pathOf(url) === '/v1/completions' ? 'prompt' : 'messages')

/** Makes an app without routes. `methods` are the known paths with their methods. */
export function httpApp(limits: HttpLimits, methods: Readonly<Record<string, readonly string[]>>): FastifyInstance {
  const app = fastify({
    logger: limits.isLogging
      ? { level: 'info', base: null, timestamp: () => `,"time":"${new Date().toISOString()}"` }
      : false,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: limits.maxBodyBytes,
    requestTimeout: timerMs(limits.bodySeconds),
    keepAliveTimeout: KEEP_ALIVE_MS,
    forceCloseConnections: true,
    return503OnClosing: false,
    requestIdHeader: false,
    genReqId: request => idOf(request.headers['x-request-id']),
    http: { connectionsCheckingInterval: Math.min(5000, Math.max(100, timerMs(limits.bodySeconds / 4))) },
    routerOptions: { maxParamLength: 1024 },
    clientErrorHandler: onClientError,
    frameworkErrors: (error, request, reply) => {
      logEnd(request as FastifyRequest, reply as unknown as FastifyReply)
      fail(limits, error, request as FastifyRequest, reply as unknown as FastifyReply)
    },
  })
  // Node swaps both times if the one for the headers is longer.
  app.server.headersTimeout = Math.min(60_000, timerMs(limits.bodySeconds))
  app.removeAllContentTypeParsers()
  const read = limits.isRaw === true ? bytesOf : jsonOf
  app.addContentTypeParser('application/json', (_request: FastifyRequest, payload: IncomingMessage) =>
    read(payload, limits.maxBodyBytes),
  )
  app.setErrorHandler((error, request, reply) => fail(limits, error, request, reply))
  app.setNotFoundHandler(({ method, url }) => {
    const path = pathOf(url)
    const known = Object.hasOwn(methods, path) ? methods[path] : undefined
    if (known === undefined) throw new Refusal(404, `there is no ${method} ${path}`, null, 'not_found')
    throw new Refusal(405, `there is no ${method} ${path}`, null, 'method_not_supported', { allow: known.join(', ') })
  })
  app.addHook('onRequest', async (request, reply) => {
    reply.header('x-request-id', request.id)
    logEnd(request, reply)
  })
  return app
}

/** Logs a request at the end of its response, with status 499 if the connection ends first: Fastify's onResponse is not called then. */
function logEnd(request: FastifyRequest, { raw }: FastifyReply): void {
  const { method, url } = request
  const start = performance.now()
  raw.once('close', () => {
    const status = raw.writableFinished ? raw.statusCode : 499
    request.log.info({ method, path: pathOf(url), status, ms: Math.round(performance.now() - start) }, 'request')
  })
}

/** The id of a request: the client's, if it is a plain one. */
function idOf(given: string | readonly string[] | undefined): string {
  return typeof given === 'string' && REQUEST_ID.test(given) ? given : randomUUID()
}

/** Answers a request with an error. */
function fail({ onRefused }: HttpLimits, error: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const refusal =
    ofFastify(error) ??
    refusalOf(error, promptParam(request.url), unexpected => request.log.error({ err: unexpected }, 'failed'))
  onRefused?.(refusal.status)
  const { raw } = request
  const declared = Number(
    raw.headers['content-length'] ?? (raw.headers['transfer-encoding'] === undefined ? 0 : Infinity),
  )
  // What is left of a long body is not read: the connection ends instead. Fastify ends it after any error of a body.
  if (raw.complete) reply.removeHeader('connection')
  else if (declared > KEPT_BODY_MAX) reply.header('connection', 'close')
  return reply.code(refusal.status).headers(refusal.headers).send(refusal.body)
}

/** Fastify's own refusals: bodies of another type, paths that cannot be decoded. */
function ofFastify(error: unknown): Refusal | undefined {
  const { code, statusCode = 500, message } = error as { code?: string; statusCode?: number; message: string }
  if (code === undefined || !code.startsWith('FST_') || statusCode >= 500) return undefined
  if (statusCode === 415)
    return new Refusal(
      415,
      'the body must be JSON: send the header Content-Type: application/json',
      null,
      'unsupported_media_type',
    )
  return new Refusal(statusCode, message, null, 'invalid_request')
}

const CLIENT_ERRORS: Readonly<Record<string, readonly [status: string, message: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'the request took too long to arrive'],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'the headers are too long'],
}

/** Answers what is not HTTP. */
function onClientError(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy()
  const [status, message] = CLIENT_ERRORS[error.code ?? ''] ?? ['400 Bad Request', 'the request is not HTTP']
  const body = JSON.stringify(new Refusal(400, message, null, 'invalid_request').body)
  socket.end(
    `HTTP/1.1 ${status}\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  )
}
