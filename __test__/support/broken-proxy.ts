import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'

/** A proxy between a client and a server on the loopback that cuts, corrupts or delays the server's data. A random number decides for each piece. */
export class BrokenProxy {
  readonly broken = { cut: 0, half: 0, bent: 0, late: 0 }
  readonly #server: Server
  readonly #sockets = new Set<Socket>()

  private constructor(server: Server) {
    this.#server = server
  }

  static async start(port: number, below: (limit: number) => number): Promise<BrokenProxy> {
    const server = createServer()
    const proxy = new BrokenProxy(server)
    server.on('connection', client => proxy.#join(client, connect(port, '127.0.0.1'), below))
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    return proxy
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port
  }

  #join(client: Socket, server: Socket, below: (limit: number) => number): void {
    for (const [socket, other] of [
      [client, server],
      [server, client],
    ] as const) {
      this.#sockets.add(socket)
      socket.on('error', () => other.destroy())
      socket.on('close', () => {
        this.#sockets.delete(socket)
        other.destroy()
      })
    }
    client.on('data', data => server.write(data))
    server.on('data', (data: Buffer) => this.#pass(client, server, data, below))
  }

  #pass(client: Socket, server: Socket, data: Buffer, below: (limit: number) => number): void {
    const half = data.subarray(0, data.length >> 1)
    const kind = below(60)
    if (kind === 0) {
      this.broken.cut += 1
      client.end(half)
    } else if (kind === 1) {
      // The next piece is taken for the rest of this one.
      this.broken.half += 1
      client.write(half)
    } else if (kind < 6) {
      this.broken.bent += 1
      const bent = Buffer.from(data)
      const place = below(bent.length)
      bent[place] = (bent[place] as number) ^ (1 << below(8))
      client.write(bent)
    } else if (kind < 10) {
      this.broken.late += 1
      server.pause()
      setTimeout(() => {
        client.write(data)
        server.resume()
      }, below(150))
    } else client.write(data)
  }

  stop(): void {
    for (const socket of this.#sockets) socket.destroy()
    this.#server.close()
  }
}
