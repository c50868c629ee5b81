// What cudarc declares of a library: the names of its functions, what kind of thing each returns, and its status codes.
//
//   extern "C" { fn cuInit(Flags: c_uint) -> CUresult; }   ->   { name: 'cuInit', returns: 'status' }
import { Refusal } from '../refusal.mjs'

const DECLARED = /extern "C" \{\s*(?:#\[[^\]]*\]\s*)*(?:pub )?fn (\w+)\s*\([^{}]*?\)(?:\s*->\s*([^;{}()]+?))?\s*;/g

/** The functions of a file of cudarc's `sys` modules, by name and each once. */
export function functions(source) {
  const found = new Map()
  for (const [, name, type] of source.matchAll(DECLARED)) found.set(name, { name, returns: returned(type) })
  if (found.size === 0) throw new Refusal('cudarc declares no functions in the form that the link stubs are made from: its version is not one that this build knows')
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** `text` for a string of C, `number` for nothing or a count, `status` for one of the library's codes. */
function returned(type) {
  if (type === undefined) return 'number'
  if (/^\*(const|mut) .*c_char$/.test(type)) return 'text'
  if (/^(usize|u\d+|i\d+|.*::c_(int|uint|long|ulong|longlong|ulonglong))$/.test(type)) return 'number'
  if (type.startsWith('*')) return 'pointer'
  return 'status'
}

/** The value of a status code. */
export function statusCode(source, name) {
  const value = new RegExp(`^\\s*${name} = (\\d+),`, 'm').exec(source)?.[1]
  if (value === undefined) throw new Refusal(`cudarc does not declare ${name}: its version is not one that this build knows`)
  return Number(value)
}
