// The timing of lanes in JavaScript.

/**
 * Reads a token of each stream, then `count` more of each. Returns milliseconds for all prompts, for a token and for everything, the peak of memory in MiB, and the
 * first tokens of the first stream.
 */
export async function timed(streams, count) {
  const start = performance.now()
  const tokens = await Promise.all(streams.map(async stream => [(await stream.next()).value]))
  const first = performance.now()
  const before = process.cpuUsage()
  await Promise.all(
    streams.map(async (stream, chat) => {
      for (let at = 0; at < count; at++) tokens[chat].push((await stream.next()).value)
    }),
  )
  const last = performance.now()
  const { user, system } = process.cpuUsage(before)
  // A runtime that stops at the end of a sequence would look faster than it is.
  const ended = tokens.findIndex(list => list.includes(undefined))
  if (ended >= 0)
    throw new Error(`chat ${ended} ended after ${tokens[ended].indexOf(undefined)} tokens of ${count + 1}`)
  return {
    prompt: first - start,
    token: (last - first) / count / streams.length,
    total: last - start,
    cpu: (user + system) / 1000 / count / streams.length,
    peak: process.resourceUsage().maxRSS / 1024,
    tokens: tokens[0].slice(0, 8).join(),
  }
}
