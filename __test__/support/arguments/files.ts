import { mkdirSync } from 'node:fs'
import { join } from 'node:path'

import { keptFolder } from '../folder.js'
import { but, optional, prompt, type Kind } from './kinds.js'
import { param, type Param } from './row.js'

const folder = keptFolder()

/** Changes to a temporary folder, in which the only string value that could be a path is a folder: no file can be saved there. */
export function inOwnFolder(): void {
  mkdirSync(join(folder, '3'))
  process.chdir(folder)
}

let files = 0

/** A path of a new file. */
export const path: Param = param('path', { legal: { '"3"': 'IO_ERROR' } }, () => join(folder, `${files++}.kv`))

/** A file by its path, or its content as bytes. */
export const source = (saved: Uint8Array): Param =>
  param('source', { legal: { '"3"': 'IO_ERROR', 'a Uint8Array': 'CORRUPT' } }, () => saved)

const onFile: Readonly<Record<string, Kind>> = {
  signal: optional({ legal: {} }),
  onProgress: optional({ legal: { 'a function': 'ok' } }),
}

/** The prompt options of a loaded sequence, which was saved without a salt. */
export const ownPrompt: Readonly<Record<string, Kind>> = {
  ...prompt,
  salt: optional({ legal: { '"3"': 'INCOMPATIBLE', 'a Uint8Array': 'INCOMPATIBLE' } }),
}

/** Options of saves and loads; `any` is the outcome for objects that have none of these options. */
export function fileOptions(any: Kind['legal'], more: Readonly<Record<string, Kind>> = {}): Param {
  const fields = Object.entries({ ...onFile, ...more }).map(([name, kind]) => ({ name, kind, rest: () => ({}) }))
  return param('options', { ...but({ legal: {} }, any), fields }, () => ({}))
}
