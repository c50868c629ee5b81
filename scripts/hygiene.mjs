// `npm run hygiene`: checks everything that would be released. All checks run, even after a failure.
import { run } from './steps.mjs'

const CHECKS = {
  'the npm package': ['scripts/release/packed.mjs'],
  'public types and codes of errors': ['scripts/release/surface.mjs'],
  'licences of what is in addons': ['scripts/release/third-party.mjs'],
  'crates as packages': ['scripts/release/crates.mjs'],
  workflows: ['scripts/release/workflows.mjs'],
}

let failed = 0
for (const [name, args] of Object.entries(CHECKS)) {
  console.log(`\n-- ${name}`)
  const { code } = await run(process.execPath, args, { shell: false })
  if (code !== 0) failed += 1
}
if (failed > 0) console.error(`\n${failed} of ${Object.keys(CHECKS).length} checks failed`)
process.exit(failed === 0 ? 0 : 1)
