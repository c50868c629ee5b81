// What a package's declarations promise, from the `.d.ts` files that the compiler writes without comments.
//
// A statement begins in the first column and lasts until the next one does. Names are followed through imports and exports, so that
// a declaration that moves to another file stays the same promise.
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

const DECLARED = /^(?:export )?(?:default )?(?:declare )?(?:abstract )?(?:class|interface|type|const|let|function|enum|namespace) (\w+)/
const LISTED = /^(import|export)(?: type)? \{([^}]*)\}(?: from '([^']+)')?/

/** The statements of a file. */
export function statements(text) {
  const found = []
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('//')) continue
    if (/^[\s}]/.test(line) && found.length > 0) found[found.length - 1] += `\n${line}`
    else found.push(line)
  }
  return found
}

/** What no caller can use is no promise. */
function withoutPrivate(statement) {
  return statement
    .split('\n')
    .filter(line => !/^\s+(#private;|private )/.test(line))
    .join('\n')
}

/** A file's own declarations, what it takes from others, and what it hands on under which name. */
function read(file) {
  const scope = { declared: new Map(), taken: new Map(), handed: new Map() }
  for (const statement of statements(readFileSync(file, 'utf8'))) {
    const [, kind, names, from] = LISTED.exec(statement) ?? []
    if (kind !== undefined) {
      const source = from?.startsWith('.') ? join(dirname(file), from.replace(/\.js$/, '.d.ts')) : from === undefined ? file : undefined
      for (const name of names.split(',').map(part => part.trim().replace(/^type /, '')).filter(part => part !== '')) {
        const [original, own = original] = name.split(' as ')
        if (source !== undefined) scope[kind === 'import' ? 'taken' : 'handed'].set(own, { file: source, name: original })
      }
      continue
    }
    const name = DECLARED.exec(statement)?.[1]
    if (name !== undefined) scope.declared.set(name, [...(scope.declared.get(name) ?? []), withoutPrivate(statement)])
  }
  return scope
}

/** The declarations that `entry` exports, and those behind them that it does not, each by its name. */
export function surfaceOf(entry) {
  const files = new Map()
  const scopeOf = file => {
    if (!files.has(file)) files.set(file, read(file))
    return files.get(file)
  }
  const resolve = (file, name) => {
    const { declared, taken, handed } = scopeOf(file)
    if (declared.has(name)) return { file, name, text: declared.get(name).join('\n') }
    const next = handed.get(name) ?? taken.get(name)
    return next === undefined || (next.file === file && next.name === name) ? undefined : resolve(next.file, next.name)
  }
  const { declared, handed } = scopeOf(entry)
  const exported = new Map()
  for (const name of [...declared.keys(), ...handed.keys()]) {
    const found = resolve(entry, name)
    if (found === undefined) throw new Error(`${name} is exported and declared nowhere`)
    exported.set(name, found)
  }
  return { exported, behind: behind([...exported.values()], resolve) }
}

const key = ({ file, name }) => `${file} ${name}`

/** What declarations name that is not among them, and so on. */
function behind(first, resolve) {
  const seen = new Set(first.map(key))
  const found = new Map()
  const waiting = [...first]
  while (waiting.length > 0) {
    const { file, text } = waiting.pop()
    for (const word of new Set(text.match(/[A-Za-z_]\w*/g))) {
      const next = resolve(file, word)
      if (next === undefined || seen.has(key(next))) continue
      seen.add(key(next))
      found.set(key(next), next)
      waiting.push(next)
    }
  }
  return [...found.values()]
}

const ordered = entries => entries.sort(([a], [b]) => (a < b ? -1 : Number(a > b)))

const part = (title, entries) => [`// ${title}`, ...new Set(entries.map(([, text]) => text))]

/** The surface as it is recorded: every export by name, then what is behind them. */
export function written({ exported, behind: rest }) {
  const first = ordered([...exported].map(([name, { name: original, text }]) => [name, name === original ? text : `// ${original} as ${name}\n${text}`]))
  const others = ordered(rest.map(({ name, text }) => [`${name}\n${text}`, text]))
  return `${[...part('What kvtide exports.', first), ...part('What stands behind it, and cannot be named by a caller.', others)].join('\n\n')}\n`
}
