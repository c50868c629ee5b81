/** @internal The version of the package and of its addons. `npm run version:raise` writes it here, so that bundles have it too. */
export const version: string = '0.1.0'
