import { connect } from 'node:net'

type Reply = string | number | null | readonly Reply[]

/** Reads one reply, and returns it with its length in bytes; `undefined` if it is not whole yet. */
function read(text: string, from: number): readonly [Reply, number] | undefined {
  const end = text.indexOf('\r\n', from)
  if (end < 0) return undefined
  const [kind, line, next] = [text[from], text.slice(from + 1, end), end + 2]
  if (kind === '+') return [line, next]
  if (kind === ':') return [Number(line), next]
  if (kind === '-') throw new Error(line)
  const count = Number(line)
  if (count < 0) return [null, next]
  if (kind === '$')
    return text.length < next + count + 2 ? undefined : [text.slice(next, next + count), next + count + 2]
  const list: Reply[] = []
  let at = next
  while (list.length < count) {
    const entry = read(text, at)
    if (entry === undefined) return undefined
    list.push(entry[0])
    at = entry[1]
  }
  return [list, at]
}

/** Sends one command to a Redis on the loopback. Texts are bytes (latin1). */
export async function redisCommand(url: string, ...words: readonly string[]): Promise<Reply> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.setEncoding('latin1')
  const command = words.map(word => `$${word.length}\r\n${word}\r\n`).join('')
  socket.write(`*${words.length}\r\n${command}`, 'latin1')
  let text = ''
  try {
    for await (const part of socket) {
      text += part as string
      const found = read(text, 0)
      if (found !== undefined) return found[0]
    }
  } finally {
    socket.destroy()
  }
  throw new Error(`the connection ended: ${text}`)
}
