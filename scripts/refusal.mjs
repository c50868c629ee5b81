// A reason not to go on that the person at the keyboard can do something about, shown without a stack; and what was asked for.
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

export class Refusal extends Error {}

/** A program or a server that is not there: what needs it is skipped, by its name. */
export class Missing extends Refusal {}

/** Runs `work` where the file of this URL is run and not imported, and says what it refuses; `skips` names what goes without what is missing. */
export async function main(url, what, work, skips) {
  if (process.argv[1] === undefined || realpathSync(process.argv[1]) !== fileURLToPath(url)) return
  try {
    await work()
  } catch (error) {
    if (error instanceof Missing && skips !== undefined) return console.log(`SKIPPED: ${skips}: ${error.message}`)
    if (!(error instanceof Refusal)) throw error
    console.error(`${what}: ${error.message}`)
    process.exitCode = 1
  }
}

/**
 * The options given on the command line, of those that `options` names, and the words beside them, as many as `words` names.
 * Anything else is refused in one line.
 */
export function given(options = {}, words = [], args = process.argv.slice(2)) {
  let parsed
  try {
    parsed = parseArgs({ args, options, allowPositionals: true })
  } catch (error) {
    throw new Refusal(error.message.split(/\.? To specify/)[0])
  }
  const { values, positionals } = parsed
  if (positionals.length > words.length) throw new Refusal(`unexpected argument ${JSON.stringify(positionals[words.length])}`)
  if (positionals.length < words.length) throw new Refusal(`${words[positionals.length]} is missing`)
  return { ...values, words: positionals }
}
