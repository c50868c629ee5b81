// Licence expressions, as SPDX writes them and as older crates do (`MIT/Apache-2.0`).
import parseSpdx from 'spdx-expression-parse'

import { Refusal } from '../refusal.mjs'

/** Texts that are one for everybody come first: one copy of them is enough. */
const PREFERRED = ['Apache-2.0', 'MIT']

/** The expression in the form that today's tools read. */
export const spdx = expression => expression.replaceAll(/\s*\/\s*/g, ' OR ')

/** The licences that deny.toml allows; cargo-deny looks at every crate, bans and sources included. */
export const allowedBy = text => [...(/^allow = \[([\s\S]*?)^\]/m.exec(text)?.[1] ?? '').matchAll(/"([^"]+)"/g)].map(([, id]) => id)

const rank = ids => Math.max(...ids.map(id => (PREFERRED.includes(id) ? PREFERRED.indexOf(id) : PREFERRED.length)))

/** The licences that an expression is taken under, of those that are allowed; nothing where there is no way. */
export function choose(expression, allowed) {
  const pick = ({ license, exception, conjunction, left, right }) => {
    if (license !== undefined) return allowed.includes(exception === undefined ? license : `${license} WITH ${exception}`) ? [license] : undefined
    const [one, other] = [pick(left), pick(right)]
    if (conjunction === 'and') return one && other && [...new Set([...one, ...other])]
    return one && other && rank(other) < rank(one) ? other : (one ?? other)
  }
  let tree
  try {
    tree = parseSpdx(spdx(expression))
  } catch {
    throw new Refusal(`${JSON.stringify(expression)} is no licence expression`)
  }
  return pick(tree)
}
