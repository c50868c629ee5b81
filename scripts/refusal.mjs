// Errors that the user of a script can fix, shown without a stack trace, and the parser of command lines.
import { realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

export class Refusal extends Error {}

/** A missing program or server: the steps that need it are skipped by name. */
export class Missing extends Refusal {}

/**
 * Runs `work` if the file of this URL is run and not imported, and prints its refusal. If a program is missing and `skips` is given, it prints
 * `skips` as skipped instead.
 */
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
 * Parses the command line: the options of `options`, and exactly as many positional words as `words` names.
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
  if (positionals.length > words.length)
    throw new Refusal(`unexpected argument ${JSON.stringify(positionals[words.length])}`)
  if (positionals.length < words.length) throw new Refusal(`${words[positionals.length]} is missing`)
  return { ...values, words: positionals }
}
