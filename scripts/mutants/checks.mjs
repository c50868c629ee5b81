// The command lines of checks.
import { inParts, libraries } from '../crates.mjs'
import { onTarget } from '../steps.mjs'

/** Runs the tests of a test binary whose names contain a text. */
export const tested = (binary, names) => [
  'cargo',
  'test',
  '--release',
  ...onTarget(),
  ...libraries,
  ...inParts,
  '--test',
  binary,
  '--',
  names,
]

/** Runs unit tests of a crate whose names contain a text. */
export const inside = (crate, names) => [
  'cargo',
  'test',
  '--release',
  ...onTarget(),
  ...inParts,
  '-p',
  crate,
  '--lib',
  '--',
  names,
]

/** Runs the tests of a file in TypeScript, or the one with a title. */
export const ava = (file, title) => (title === undefined ? ['ava', file] : ['ava', file, '--match', title])

/** As {@link ava}, with the addon of the tree, which is built first. */
export const addon = (file, ...title) => ['node', 'scripts/mutants/built.mjs', file, ...title]

export const fuzz = target => ['node', 'scripts/fuzz.mjs', target, '--seconds', '60']
