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

export const ava = file => ['ava', file]

export const fuzz = target => ['node', 'scripts/fuzz.mjs', target, '--seconds', '60']
