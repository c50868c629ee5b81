import { createRequire } from 'node:module'

import type * as Native from '#binding'

import { KvTideError } from './errors.js'

/** The native addon. Only files of this folder import it. */
type Binding = typeof Native

function load(): Binding {
  let loaded: Binding
  try {
    loaded = createRequire(import.meta.url)('#binding') as Binding
  } catch (cause) {
    const platform = `${process.platform}-${process.arch}`
    const reason = cause instanceof Error ? cause.message.split('\n', 1)[0] : String(cause)
    throw new KvTideError(
      'BINDING_NOT_FOUND',
      `the native addon for ${platform} could not be loaded: ${reason}`,
      { platform, reason },
      { cause },
    )
  }
  loaded.setErrorClass(KvTideError)
  return loaded
}

/** @internal */
export const binding: Binding = load()
