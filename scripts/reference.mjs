// `npm run test:reference`: compares the decoder of examples/ with a model's recorded results, in the folder KVTIDE_REFERENCE_DIR.
import { resolve } from 'node:path'

import { must, onTarget, root } from './steps.mjs'

// The folder is relative to the one in which the command was given.
const given = process.env.KVTIDE_REFERENCE_DIR || undefined
const folder =
  given === undefined ? resolve(root, '__test__/fixtures/llama') : resolve(process.env.INIT_CWD ?? process.cwd(), given)

await must('cargo', ['run', '--release', '--quiet', ...onTarget(), '-p', 'decoder', '--bin', 'reference'], {
  env: { KVTIDE_REFERENCE_DIR: folder },
})
