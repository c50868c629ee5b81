// What is in a package as npm packs it: a tar archive, compressed.
import { gunzipSync } from 'node:zlib'

import { Refusal } from '../refusal.mjs'

const BLOCK = 512
const field = (bytes, start, length) => bytes.toString('latin1', start, start + length).replace(/\0[\s\S]*$/, '')

/** The files of a package: the path in it, and the bytes of each. */
export function filesOf(packed) {
  let bytes
  try {
    bytes = gunzipSync(packed)
  } catch (error) {
    throw new Refusal(`the package cannot be read: ${error.message}`)
  }
  const found = []
  for (let at = 0; at + BLOCK <= bytes.length && bytes[at] !== 0; ) {
    const [name, prefix] = [field(bytes, at, 100), field(bytes, at + 345, 155)]
    const size = Number.parseInt(field(bytes, at + 124, 12).trim(), 8)
    if (!Number.isInteger(size) || at + BLOCK + size > bytes.length) throw new Refusal('the package is cut short')
    // '0' is a file; npm writes nothing else but notes on names that are too long for this form, which kvtide has none of.
    if (field(bytes, at + 156, 1) !== '0') throw new Refusal(`the package has an entry that is no file: ${name}`)
    found.push({ path: (prefix === '' ? name : `${prefix}/${name}`).replace(/^package\//, ''), size })
    at += BLOCK + Math.ceil(size / BLOCK) * BLOCK
  }
  return found.sort((a, b) => (a.path < b.path ? -1 : 1))
}
