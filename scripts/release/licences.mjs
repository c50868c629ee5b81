// Licence expressions, as SPDX writes them and as older crates do (`MIT/Apache-2.0`).
import { Refusal } from '../refusal.mjs'

/** Texts that are one for everybody come first: one copy of them is enough. */
const PREFERRED = ['Apache-2.0', 'MIT']

function tokens(expression) {
  const found = expression.match(/\(|\)|\/|[A-Za-z0-9.+-]+/g) ?? []
  return found.map(token => (token === '/' ? 'OR' : token))
}

/** An expression as a tree: `{ id }`, or `{ all }`, or `{ any }`. */
export function parse(expression) {
  const rest = tokens(expression)
  const wrong = () => new Refusal(`${JSON.stringify(expression)} is no licence expression`)
  const single = () => {
    const token = rest.shift()
    if (token === '(') {
      const inner = any()
      if (rest.shift() !== ')') throw wrong()
      return inner
    }
    if (token === undefined || ['OR', 'AND', 'WITH', ')'].includes(token)) throw wrong()
    if (rest[0] !== 'WITH') return { id: token }
    const [, exception] = rest.splice(0, 2)
    if (exception === undefined || ['OR', 'AND', 'WITH', '(', ')'].includes(exception)) throw wrong()
    return { id: `${token} WITH ${exception}` }
  }
  const list = (word, part, kind) => {
    const parts = [part()]
    while (rest[0] === word) {
      rest.shift()
      parts.push(part())
    }
    return parts.length === 1 ? parts[0] : { [kind]: parts }
  }
  const all = () => list('AND', single, 'all')
  const any = () => list('OR', all, 'any')
  const tree = any()
  if (rest.length > 0) throw wrong()
  return tree
}

const rank = ids => Math.max(...ids.map(id => (PREFERRED.includes(id) ? PREFERRED.indexOf(id) : PREFERRED.length)))

/** The licences that an expression is taken under, of those that are allowed; nothing where there is no way. */
export function choose(expression, allowed) {
  const pick = tree => {
    if (tree.id !== undefined) return allowed.includes(tree.id) ? [tree.id] : undefined
    const picked = (tree.all ?? tree.any).map(pick)
    if (tree.all !== undefined) return picked.includes(undefined) ? undefined : [...new Set(picked.flat())]
    const possible = picked.filter(ids => ids !== undefined)
    return possible.sort((a, b) => rank(a) - rank(b))[0]
  }
  return pick(parse(expression))
}

/** The expression in the form that today's tools read. */
export function spdx(expression) {
  return tokens(expression)
    .join(' ')
    .replaceAll('( ', '(')
    .replaceAll(' )', ')')
}
