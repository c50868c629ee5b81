import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

import type * as Native from '#binding'

import { chooseBinding, loadedAddons, notedBinding, noteBinding, refuseSecond, type BindingChoice } from './binding-choice.js'
import { KvTideError } from './errors.js'

/** The native addon. Only files of this folder import it. */
type Binding = typeof Native

const require = createRequire(import.meta.url)

function choose(): BindingChoice {
  return chooseBinding({
    loader: found(),
    wanted: process.env['KVTIDE_DEVICE'],
    cudaPlatform: process.platform === 'linux' && process.arch === 'x64',
  })
}

/** The generated loader of the package. */
function found(): string {
  try {
    return require.resolve('#binding')
  } catch (cause) {
    throw notLoaded('the native addon', cause)
  }
}

function load(choice: BindingChoice): Binding {
  refuseSecond(choice, loadedAddons(), notedBinding())
  let loaded: Binding
  try {
    loaded = require(choice.file) as Binding
  } catch (cause) {
    throw choice.kind === 'cuda' ? notLoaded(`the addon with CUDA, ${choice.file},`, cause, '; KVTIDE_DEVICE=cpu takes the one without') : notLoaded('the native addon', cause)
  }
  checkVersion(loaded, choice)
  noteBinding(choice)
  loaded.setErrorClass(KvTideError)
  return loaded
}

function notLoaded(what: string, cause: unknown, remedy = ''): KvTideError {
  const platform = `${process.platform}-${process.arch}`
  const reason = cause instanceof Error ? (cause.message.split('\n', 1)[0] ?? '') : String(cause)
  return new KvTideError('BINDING_NOT_FOUND', `${what} for ${platform} could not be loaded: ${reason}${remedy}`, { platform, reason }, { cause })
}

/** The addon and what is around it are made for each other: versions have to be equal. */
function checkVersion(loaded: Binding, { file }: BindingChoice): void {
  const { version: expected } = JSON.parse(readFileSync(join(dirname(found()), 'package.json'), 'utf8')) as { version: string }
  const version = typeof loaded.buildInfo === 'function' ? loaded.buildInfo().version : 'unknown'
  if (version === expected) return
  const message = `${file} is of version ${version}, the package of ${expected}: install or build both in one version`
  throw new KvTideError('BINDING_MISMATCH', message, { file, version, expected })
}

/** @internal Which addon it is. */
export const bindingChoice: BindingChoice = choose()

/** @internal */
export const binding: Binding = load(bindingChoice)
