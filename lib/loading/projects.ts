// Resolving packages, from this package and from the project that runs it. Bundlers may have moved this code into another file.
import nodeModule from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

/** @internal The file that contains this code: a bundle, if a bundler put it there. A CommonJS bundle has no `import.meta.url`. */
export const here: string = (import.meta as { readonly url?: string }).url ?? pathToFileURL(__filename).href

/** @internal A `require` that resolves from `place`. If `createRequire` were imported by name, webpack would try to follow it and remove it. */
export function requireFrom(place: string): NodeJS.Require {
  return nodeModule.createRequire(place)
}

/** @internal The places where packages are looked for: this package's own, then the running project's. */
export function* projects(): Generator<string> {
  yield here
  try {
    yield join(process.cwd(), 'package.json')
  } catch {
    // The folder in which the process was started is gone.
  }
}

/**
 * @internal The folder of the package: the one that contains this file or, if a bundler copied this file into another package, the one that is
 * installed. `undefined` if there is none.
 */
export function packageFolder(): string | undefined {
  for (const project of projects()) {
    for (const name of ['#package', 'kvtide/package.json']) {
      try {
        const require = requireFrom(project)
        const file = require.resolve(name)
        // A bundle's own project may have an import of the same name.
        if ((require(file) as { readonly name?: unknown }).name === 'kvtide') return dirname(file)
      } catch {
        continue
      }
    }
  }
  return undefined
}
