// `npm run licences`: checks that THIRD_PARTY.md names every crate inside an addon, with its licence; -- --renew writes it.
//
// If a crate offers a choice, Apache-2.0 is used, whose text is the same for all of them, else MIT.
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import parseSpdx from 'spdx-expression-parse'

import { given, main, Refusal } from '../refusal.mjs'
import { root } from '../steps.mjs'
import { addons, shipped } from './cargo.mjs'
import { holdAgainst } from './recorded.mjs'

const PAGE = join(root, 'THIRD_PARTY.md')

/** Licences with a common text come first: one copy is enough. */
const PREFERRED = ['Apache-2.0', 'MIT']

export const spdx = expression => expression.replaceAll(/\s*\/\s*/g, ' OR ')

/** The licences that deny.toml allows; cargo-deny checks every crate, including bans and sources. */
export const allowedBy = text =>
  [...(/^allow = \[([\s\S]*?)^\]/m.exec(text)?.[1] ?? '').matchAll(/"([^"]+)"/g)].map(([, id]) => id)

const rank = ids => Math.max(...ids.map(id => (PREFERRED.includes(id) ? PREFERRED.indexOf(id) : PREFERRED.length)))

/** Returns the allowed licences that satisfy an expression, or undefined if there are none. */
export function choose(expression, allowed) {
  const pick = ({ license, exception, conjunction, left, right }) => {
    if (license !== undefined)
      return allowed.includes(exception === undefined ? license : `${license} WITH ${exception}`)
        ? [license]
        : undefined
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

/** The names of licences in file names. */
const IN_NAMES = {
  MIT: /mit/i,
  Zlib: /zlib/i,
  ISC: /isc/i,
  'Unicode-3.0': /unicode/i,
  'Apache-2.0': /apache/i,
  other: /unlicense|bsl|bsd|cc0|lgpl/i,
}

export function licenceFile(files, id) {
  const texts = files.filter(file => /^(licen[cs]e|copying|unlicense)/i.test(file)).sort()
  const named = texts.find(file => IN_NAMES[id]?.test(file))
  const ofAnother = file => Object.entries(IN_NAMES).some(([other, name]) => other !== id && name.test(file))
  return named ?? texts.find(file => !ofAnother(file))
}

const tidied = text =>
  text
    .replaceAll('\r\n', '\n')
    .replaceAll(/[ \t]+$/gm, '')
    .replaceAll(/\n{3,}/g, '\n\n')
    .trim()

/** The text of MIT, for a crate whose package has none: the text is the same for all. */
function mitOf({ name, authors }) {
  const [, words] = readFileSync(join(root, 'LICENSE-MIT'), 'utf8').split(/^Copyright .*\n/m)
  const by =
    authors.length > 0 ? authors.map(author => author.replace(/ ?<[^>]*>/, '')).join(', ') : `the authors of ${name}`
  return `MIT License\n\nCopyright (c) ${by}\n${words}`
}

function textOf(crate, id) {
  const folder = dirname(crate.manifest_path)
  const file = licenceFile(readdirSync(folder), id)
  if (file !== undefined) return tidied(readFileSync(join(folder, file), 'utf8'))
  if (id === 'MIT') return tidied(mitOf(crate))
  throw new Refusal(`${crate.name} ${crate.version} is under ${id}, and its package has no text of it`)
}

/** Notices that Apache-2.0 requires to be passed on. */
function noticesOf(crate) {
  const folder = dirname(crate.manifest_path)
  return readdirSync(folder)
    .filter(file => /^notice/i.test(file))
    .map(file => tidied(readFileSync(join(folder, file), 'utf8')))
}

export function where(names, all) {
  if (names.length === all.length) return 'all'
  const cpu = all.filter(name => name !== 'cuda')
  if (cpu.every(name => names.includes(name))) return 'all but cuda'
  const net = all.filter(name => name.startsWith('net '))
  if (net.length > 0 && [...net, 'cuda'].every(name => names.includes(name)) && names.length === net.length + 1)
    return 'all that have the network'
  return names.join(', ')
}

function grouped(entries) {
  const found = new Map()
  for (const { named, text } of entries) {
    const key = text.replaceAll(/\s+/g, ' ')
    found.set(key, { text, names: [...(found.get(key)?.names ?? []), named] })
  }
  return [...found.values()].map(({ text, names }) => `### ${names.join(', ')}\n\n\`\`\`text\n${text}\n\`\`\``)
}

const HEAD = `# Third-party code in kvtide's addons

Written by \`npm run licences -- --renew\`, from cargo's metadata. Do not edit by hand.

The addons (the files whose names end in \`.node\`) contain the crates below. kvtide itself is under MIT or Apache-2.0, at your choice. Crates
that offer Apache-2.0 are used under it; its text is in \`LICENSE-APACHE\`. The texts of the other licences follow.

## Not crates

- The standard library of Rust, in every addon: MIT or Apache-2.0, copyright The Rust Project Developers.
- NVIDIA's CUDA runtime in its static form, \`libcudart_static.a\`, in the addon with CUDA alone: copyright NVIDIA Corporation, under the licence
  agreement of the CUDA Toolkit, which lists it among the redistributable parts of an application.
- uPlot, in the page of the inspector, which is in the package \`kvtide\` and in no addon: MIT, copyright Leon Sorokin. The page contains the text.
`

export function page(crates, names, allowed) {
  const taken = crates
    .filter(({ source }) => source !== null)
    .map(crate => {
      const ids = choose(crate.license ?? '', allowed)
      if (ids === undefined)
        throw new Refusal(`${crate.name} ${crate.version} is under ${crate.license}, of which none is allowed`)
      return { crate, ids, named: `${crate.name} ${crate.version}` }
    })
  const rows = taken.map(
    ({ crate, ids }) =>
      `| ${crate.name} | ${crate.version} | ${crate.license} | ${ids.join(' and ')} | ${where(crate.addons, names)} |`,
  )
  const texts = taken.flatMap(({ crate, ids, named }) =>
    ids.filter(id => id !== 'Apache-2.0').map(id => ({ named, text: textOf(crate, id) })),
  )
  const notices = taken
    .filter(({ ids }) => ids.includes('Apache-2.0'))
    .flatMap(({ crate, named }) => noticesOf(crate).map(text => ({ named, text })))
  return [
    HEAD,
    `## Crates\n\n| crate | version | licence | taken under | in |\n| --- | --- | --- | --- | --- |\n${rows.join('\n')}\n`,
    `## Texts\n\n${grouped(texts).join('\n\n')}\n`,
    ...(notices.length > 0 ? [`## Notices\n\n${grouped(notices).join('\n\n')}\n`] : []),
  ].join('\n')
}

function licences() {
  const { renew } = given({ renew: { type: 'boolean' } })
  const allowed = allowedBy(readFileSync(join(root, 'deny.toml'), 'utf8'))
  holdAgainst(
    PAGE,
    page(
      shipped(),
      addons().map(({ name }) => name),
      allowed,
    ),
    renew,
    'licences',
  )
}

await main(import.meta.url, 'licence check failed', licences)
