import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'

/** A request of an object store, as a fault sees it. */
export interface ObjectRequest {
  readonly method: string
  readonly path: string
  readonly authorization: string
  /** The value under the path, if there is one. */
  readonly value: Buffer | undefined
}

/** Answers a request in place of the server. Returns false if the server answers by itself. */
export type ObjectFault = (request: ObjectRequest, response: ServerResponse, socket: Socket) => boolean

/** A server with the part of S3 that a store of blocks uses, whose answers a test may replace. */
export class ObjectServer {
  readonly values: Map<string, Buffer> = new Map()
  /** The requests, in order. */
  readonly requests: ObjectRequest[] = []
  fault: ObjectFault | undefined
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  #port = 0

  private constructor() {
    this.#server = createServer((request, response) => void this.#answer(request, response))
    this.#server.on('connection', socket => {
      this.#sockets.add(socket)
      socket.on('close', () => this.#sockets.delete(socket))
      socket.on('error', () => {})
    })
  }

  static async start(): Promise<ObjectServer> {
    const server = new ObjectServer()
    await server.run()
    return server
  }

  get port(): number {
    return this.#port
  }

  /** Listens, again on the same port. */
  async run(): Promise<void> {
    await new Promise<void>(resolve => this.#server.listen(this.#port, '127.0.0.1', resolve))
    this.#port = (this.#server.address() as AddressInfo).port
  }

  /** Closes the port and all connections. The values stay. */
  async stop(): Promise<void> {
    const closed = new Promise(resolve => this.#server.close(resolve))
    for (const socket of this.#sockets) socket.destroy()
    await closed
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = []
    try {
      for await (const part of request) parts.push(part as Buffer)
    } catch {
      return
    }
    const path = decodeURIComponent((request.url ?? '').replace(/\?.*$/, ''))
    const value = this.values.get(path)
    const { method = '', headers, socket } = request
    const asked: ObjectRequest = { method, path, authorization: headers.authorization ?? '', value }
    this.requests.push(asked)
    if (this.fault?.(asked, response, socket) === true) return
    const end = (status: number, body?: Buffer): void => {
      response.writeHead(status, {
        etag: '"1"',
        'last-modified': new Date(0).toUTCString(),
        'content-length': body?.length ?? 0,
      })
      response.end(method === 'HEAD' ? undefined : body)
    }
    if (method === 'PUT') {
      if (value !== undefined && headers['if-none-match'] === '*') return end(412)
      this.values.set(path, Buffer.concat(parts))
      end(200)
    } else if (method === 'DELETE') {
      this.values.delete(path)
      end(204)
    } else if (value === undefined) end(404)
    else end(200, value)
  }
}
