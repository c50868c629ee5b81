// Where the sources of cudarc are, which candle calls CUDA through: cargo knows.
import { ask } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

/** The folder of the version that Cargo.lock names. */
export function cudarcFolder() {
  const text = ask('cargo', ['metadata', '--format-version', '1', '--locked', '--features', 'cuda', '--filter-platform', 'x86_64-unknown-linux-gnu'])
  if (text === undefined) throw new Refusal('`cargo metadata` failed: run it to see why')
  const found = JSON.parse(text).packages.find(({ name }) => name === 'cudarc')
  if (found === undefined) throw new Refusal('cargo does not list cudarc among the dependencies')
  return found.manifest_path.replace(/[/\\]Cargo\.toml$/, '')
}
