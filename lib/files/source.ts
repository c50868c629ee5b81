// Paths and sources of files as arguments: a path, a `file:` URL, or bytes. Bytes are copied at once, so the caller may change them during the load.
import { fileURLToPath } from 'node:url'

import type { NativeSource } from '#binding'

import { arrayKind } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { binding } from '../loading/binding.js'

/** A file, given by its path or its `file:` URL, or its content. */
export type SavedSource = string | URL | Uint8Array

const hrefOf = Object.getOwnPropertyDescriptor(URL.prototype, 'href')?.get as (this: unknown) => string

/** Returns the path of a `file:` URL, and any other value unchanged. */
function pathOf(value: unknown): unknown {
  try {
    return fileURLToPath(Reflect.apply(hrefOf, value, []))
  } catch {
    return value
  }
}

/** @internal Reads the path of a file. */
export function readPath(argument: string, value: unknown): string {
  const path = pathOf(value)
  if (typeof path === 'string' && path !== '' && !path.includes('\0')) return path
  throw invalid(argument, value, 'the path of a file, or its file: URL')
}

/** @internal Reads the source of a load. The bytes of an array are copied. */
export function readSource(value: unknown): NativeSource {
  if (arrayKind(value) === 'Uint8Array') return binding.NativeSource.memory(value as Uint8Array)
  if (arrayKind(value) !== undefined)
    throw invalid('source', value, 'the path of a file, its file: URL, or a Uint8Array')
  return binding.NativeSource.file(readPath('source', value))
}
