// `npm run test:reference`: compares the decoder of examples/ with a model's recorded results, in the folder KVTIDE_REFERENCE_DIR.
import { join, resolve } from 'node:path'

import { tested } from './crates.mjs'
import { hostTarget, must, onTarget, root } from './steps.mjs'

// The folder is relative to the one in which the command was given.
const given = process.env.KVTIDE_REFERENCE_DIR || undefined
const folder =
  given === undefined ? resolve(root, '__test__/fixtures/llama') : resolve(process.env.INIT_CWD ?? process.cwd(), given)

// With the features of the tests, for which its crates have been compiled already.
await must('cargo', ['build', '--release', '--quiet', ...tested, '--bin', 'reference', ...onTarget()])
await must(join(root, 'target', hostTarget() ?? '', 'release', 'reference'), [], {
  env: { KVTIDE_REFERENCE_DIR: folder },
})
