// `npm run api`: builds the API reference in target/api from the doc comments. typedoc uses its own TypeScript, which this folder has.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import { must } from '../steps.mjs'

const folder = fileURLToPath(new URL('.', import.meta.url))
if (!existsSync(new URL('node_modules/typedoc', import.meta.url))) await must('npm', ['ci', '--prefix', folder])
await must('node', [
  fileURLToPath(new URL('node_modules/typedoc/bin/typedoc', import.meta.url)),
  '--options',
  fileURLToPath(new URL('typedoc.json', import.meta.url)),
])
