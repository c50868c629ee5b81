import { createRequire } from 'node:module'

/** @internal The version of the package, which its addons have as well. */
export const { version } = createRequire(import.meta.url)('#package') as { readonly version: string }
