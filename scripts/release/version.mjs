// Versions: what is one, which of two is newer, and where this repository writes its own.
//
// All packages and crates have one version. Each place knows how to read it there and how to put another one in its stead.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { Refusal } from '../refusal.mjs'

const VERSION = /^(\d+)\.(\d+)\.(\d+)(?:-([\dA-Za-z-]+(?:\.[\dA-Za-z-]+)*))?$/

/** The numbers of a version, and the words of what comes before its release; nothing where it is none. */
export function parse(version) {
  const found = VERSION.exec(version)
  if (found === null) return undefined
  const [, major, minor, patch, before] = found
  const numbers = [major, minor, patch]
  const words = before === undefined ? [] : before.split('.')
  if ([...numbers, ...words].some(part => /^0\d+$/.test(part))) return undefined
  return { numbers: numbers.map(Number), words }
}

/** Below 0 where `a` comes before `b`, above 0 where it comes behind, by Semantic Versioning. */
export function compare(a, b) {
  const [first, second] = [parse(a), parse(b)]
  for (let at = 0; at < 3; at++) {
    if (first.numbers[at] !== second.numbers[at]) return first.numbers[at] - second.numbers[at]
  }
  if (first.words.length === 0 || second.words.length === 0) return second.words.length - first.words.length
  for (let at = 0; at < Math.min(first.words.length, second.words.length); at++) {
    const order = compareWords(first.words[at], second.words[at])
    if (order !== 0) return order
  }
  return first.words.length - second.words.length
}

function compareWords(a, b) {
  const [first, second] = [a, b].map(word => (/^\d+$/.test(word) ? Number(word) : undefined))
  if (first !== undefined && second !== undefined) return first - second
  if ((first === undefined) !== (second === undefined)) return first === undefined ? 1 : -1
  return a < b ? -1 : Number(a > b)
}

/** Crates of this repository in a Cargo.lock: those without a source. */
const LOCKED = /(\[\[package\]\]\nname = "(?:kvtide(?:-core|-cuda|-tensor|-bench|-bench-cuda)?|decoder)"\nversion = ")([^"]+)("\n(?!source))/g

/** Where the version stands: text before it, the version, text behind it. */
const PLACES = [
  { file: 'package.json', pattern: /^(\s{2}"version": ")([^"]+)(")/gm, least: 1 },
  { file: 'package-lock.json', pattern: /^(\s{2}"name": "kvtide",\n\s{2}"version": "|\s{4}"": \{\n\s{6}"name": "kvtide",\n\s{6}"version": ")([^"]+)(")/gm, least: 2 },
  { file: 'Cargo.toml', pattern: /(^\[workspace\.package\]\nversion = "|^kvtide-\w+ = \{ version = ")([^"]+)(")/gm, least: 4 },
  { file: 'Cargo.lock', pattern: LOCKED, least: 5 },
  { file: 'bench/peers/Cargo.lock', pattern: LOCKED, least: 2 },
]

/** Every place and the version that it names. */
export function versions(folder) {
  return PLACES.flatMap(({ file, pattern, least }) => {
    const found = [...readFileSync(join(folder, file), 'utf8').matchAll(pattern)].map(([, , version]) => ({ file, version }))
    if (found.length < least) throw new Refusal(`${file} names the version ${found.length} times, expected at least ${least}`)
    return found
  })
}

/** The one version of this repository. */
export function present(folder) {
  const found = versions(folder)
  const { file: first, version } = found[0]
  const other = found.find(place => place.version !== version)
  if (other !== undefined) throw new Refusal(`${first} has version ${version}, ${other.file} has ${other.version}`)
  return version
}

/** Writes another one everywhere; answers what was changed. */
export function write(folder, version) {
  for (const { file, pattern } of PLACES) {
    const path = join(folder, file)
    writeFileSync(path, readFileSync(path, 'utf8').replaceAll(pattern, (_, before, _old, after) => `${before}${version}${after}`))
  }
  return PLACES.map(({ file }) => file)
}
