// What scripts are asked for on the command line.
import { parseArgs } from 'node:util'

import { Refusal } from './refusal.mjs'

/**
 * The options given, of those that `options` names, and the words beside them, as many as `words` names.
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
