// Loads the native addon, once per thread, when this module is imported. The other files of this folder choose its file (binding-choice), check it before
// it is loaded (addon-file) and name the platform. If the addon is missing, truncated or of another version, the error says what to install.
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

import type * as Native from '#binding'

import { fileProblem, libcProblem } from './addon-file.js'
import {
  chooseBinding,
  loadedAddons,
  notedBinding,
  noteBinding,
  notFound,
  refuseSecond,
  type BindingChoice,
} from './binding-choice.js'
import { KvTideError, refusalOf } from '../errors/errors.js'
import { mappedFiles, platformOf, runtimeProblem } from './platform.js'
import { here, packageFolder, requireFrom } from './projects.js'
import { version as expected } from './version.js'

/** The native addon. Only this file loads it. */
type Binding = typeof Native

const require = requireFrom(here)
const maps = mappedFiles()
const platform = platformOf(process.platform, process.arch, maps)

function choose(): BindingChoice {
  const problem = runtimeProblem(process.versions)
  if (problem !== undefined) throw notFound(problem, platform, problem)
  return chooseBinding({
    // Without the package, the addon can only lie next to the bundle.
    folder: packageFolder() ?? dirname(fileURLToPath(here)),
    version: expected,
    wanted: process.env['KVTIDE_DEVICE'],
    named: process.env['NAPI_RS_NATIVE_LIBRARY_PATH'],
    platform,
  })
}

function load(choice: BindingChoice): Binding {
  const { file } = choice
  let problem: string | undefined
  try {
    problem = fileProblem(file, platform)
  } catch (cause) {
    throw notLoaded(choice, messageOf(cause), '', cause)
  }
  if (problem !== undefined) throw notLoaded(choice, problem, AGAIN)
  refuseSecond(choice, loadedAddons(maps), notedBinding())
  let loaded: Binding
  try {
    loaded = require(file) as Binding
  } catch (cause) {
    const libc = libcProblem(file, messageOf(cause), platform)
    throw notLoaded(choice, libc ?? messageOf(cause), libc === undefined ? '' : AGAIN, cause)
  }
  checkVersion(loaded, choice)
  noteBinding(choice)
  // The addon calls this with `new`, and gets an error of the package's own class.
  loaded.setErrorClass(function refusal(...given: Parameters<typeof refusalOf>) {
    return refusalOf(...given)
  })
  return loaded
}

const AGAIN = `remove node_modules and run \`npm install\` on ${platform.name}`

const messageOf = (cause: unknown): string =>
  cause instanceof Error ? (cause.message.split('\n', 1)[0] ?? '') : String(cause)

function notLoaded(
  { kind, file, reason: chosen }: BindingChoice,
  reason: string,
  remedy: string,
  cause?: unknown,
): KvTideError {
  const what = { cuda: 'addon with CUDA', net: 'addon with the network', cpu: 'native addon' }[kind]
  const remedies = [
    chosen.startsWith('NAPI_RS') ? chosen : remedy,
    kind === 'cuda' ? 'KVTIDE_DEVICE=cpu selects the addon without CUDA' : '',
  ].filter(Boolean)
  const message = [`the ${what} for ${platform.name}, ${file}, could not be loaded: ${reason}`, ...remedies].join('; ')
  return notFound(message, platform, reason, cause)
}

/** Refuses an addon whose version differs from the package's. */
function checkVersion(loaded: Binding, { file }: BindingChoice): void {
  const version = typeof loaded.buildInfo === 'function' ? loaded.buildInfo().version : 'unknown'
  if (version === expected) return
  const message = `${file} has version ${version}, but the package has ${expected}: install or build the same version of both`
  throw new KvTideError('BINDING_MISMATCH', message, { file, version, expected })
}

/** @internal The addon that was chosen, and the reason. */
export const bindingChoice: BindingChoice = choose()

/** @internal The native addon. */
export const binding: Binding = load(bindingChoice)
