// What makes a build the same wherever it is made: folders of this machine go into no file that is published.
import { homedir } from 'node:os'
import { join } from 'node:path'

/** The environment of a build in `folder`: names of files in messages begin with `/kvtide` and `/cargo` instead. */
export function remapped(folder, env = process.env) {
  const cargo = env.CARGO_HOME || join(homedir(), '.cargo')
  const given = env.CARGO_ENCODED_RUSTFLAGS ? env.CARGO_ENCODED_RUSTFLAGS.split('\x1f') : (env.RUSTFLAGS ?? '').split(' ').filter(flag => flag !== '')
  const own = [`--remap-path-prefix=${cargo}=/cargo`, `--remap-path-prefix=${folder.replace(/[\\/]$/, '')}=/kvtide`]
  return { CARGO_ENCODED_RUSTFLAGS: [...given, ...own].join('\x1f') }
}
