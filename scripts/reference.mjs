// `npm run test:reference`: the decoder of examples/ against what was computed for a model, in the folder KVTIDE_REFERENCE_DIR.
import { resolve } from 'node:path'

import { must, onTarget, root } from './steps.mjs'

// A folder is meant as seen from where the command was given.
const given = process.env.KVTIDE_REFERENCE_DIR || undefined
const folder = given === undefined ? resolve(root, '__test__/fixtures/llama') : resolve(process.env.INIT_CWD ?? process.cwd(), given)

await must('cargo', ['run', '--release', '--quiet', ...onTarget(), '-p', 'decoder', '--bin', 'reference'], {
  env: { KVTIDE_REFERENCE_DIR: folder },
})
