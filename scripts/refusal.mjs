// A reason not to go on that the person at the keyboard can do something about, shown without a stack; and what was asked for.
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

export class Refusal extends Error {}

/** A program or a server that is not there: what needs it is skipped, by its name. */
export class Missing extends Refusal {}

export async function refusable(what, work) {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    console.error(`${what}: ${error.message}`)
    process.exitCode = 1
  }
}

/** The same, where a file is run and not imported. */
export async function main(url, what, work) {
  if (process.argv[1] === fileURLToPath(url)) await refusable(what, work)
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
