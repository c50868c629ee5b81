// Runs tests in TypeScript with the addon of this tree, which is built first: `node scripts/mutants/built.mjs <test file> [title]`. It panics on demand.
import { copyFileSync } from 'node:fs'
import { join } from 'node:path'

import { hostTarget, libraryFile, must, onTarget, root, run } from '../steps.mjs'

await must('cargo', ['build', '--release', ...onTarget(), '-p', 'kvtide', '--features', 'net,panics'])
const addon = join(root, 'target', 'panics.node')
copyFileSync(join(root, 'target', hostTarget(), 'release', libraryFile), addon)
const [file, title] = process.argv.slice(2)
const { code } = await run('ava', title === undefined ? [file] : [file, '--match', title], {
  env: { NAPI_RS_NATIVE_LIBRARY_PATH: addon, KVTIDE_DEVICE: 'cpu' },
})
process.exit(code)
