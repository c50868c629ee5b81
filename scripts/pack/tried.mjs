// The programs that an installed kvtide is tried with, what they have to print, and what has to have types.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { root } from '../steps.mjs'

export function quickStart() {
  const text = /## Quick start[\s\S]*?```ts\n([\s\S]*?)```/.exec(readFileSync(join(root, 'README.md'), 'utf8'))?.[1]
  if (text === undefined) throw new Error('the README has no quick start')
  return text
}

const STARTED = /^1 \[ 1, 8, 1, 128 \]$/m

/** A program that sees kvtide in a worker as well: what it imports, and how it names its own file. */
const worker = (imports, file) => `${imports}
if (workers.isMainThread) {
  const worker = new workers.Worker(${file})
  worker.on('error', error => { throw error })
  worker.on('message', seen => { console.log('worker', seen); worker.terminate() })
  console.log('main', kvtide.Tensor.from(new Float32Array([3]), [1]).toArray()[0])
} else {
  workers.parentPort.postMessage(kvtide.Tensor.from(new Float32Array([7]), [1]).toArray()[0])
}`

const WORKED = /main 3\s[\s\S]*worker 7/

/** Each is run as it is; those without a text are made from the quick start. */
export const PROGRAMS = [
  { file: 'quick-start.mjs', printed: STARTED },
  { file: 'quick-start.cjs', printed: STARTED },
  { file: 'worker.mjs', text: worker("import * as workers from 'node:worker_threads'\nimport * as kvtide from 'kvtide'", 'new URL(import.meta.url)'), printed: WORKED },
  { file: 'worker.cjs', text: worker("const workers = require('node:worker_threads')\nconst kvtide = require('kvtide')", '__filename'), printed: WORKED },
  {
    // However it is asked for, there is one of each class.
    file: 'both.cjs',
    text: `const required = require('kvtide')
import('kvtide').then(imported => {
  try { new imported.KvCache({}) } catch (error) { console.log(error.code, error instanceof required.KvTideError, imported.KvCache === required.KvCache) }
})`,
    printed: /^INVALID_ARGUMENT true true$/m,
  },
]

const USED = `const options: KvCacheOptions = { batchSize: 1, numKvHeads: 8, initialCapacity: 256, maxSeqLen: 8192, headDim: 128 }
export const cache: KvCache = new KvCache(options)
export const count: number = cache.seqLen
export function code(error: KvTideError<'BUSY'>): 'BUSY' { return error.code }
// @ts-expect-error: there are types, not any.
export const wrong: string = cache.seqLen
`
const IMPORTED = `import { KvCache, KvTideError, type KvCacheOptions } from 'kvtide'\n${USED}`
const REQUIRED = `import kvtide = require('kvtide')\n${USED.replace('new KvCache(', 'new kvtide.KvCache(').replaceAll(/: (KvCacheOptions|KvCache|KvTideError)\b/g, ': kvtide.$1')}`

export const TYPED = [
  { file: 'node16.mts', module: 'node16', resolution: 'node16', text: IMPORTED },
  { file: 'node16.cts', module: 'node16', resolution: 'node16', text: IMPORTED },
  { file: 'required16.cts', module: 'node16', resolution: 'node16', text: REQUIRED },
  { file: 'nodenext.mts', module: 'nodenext', resolution: 'nodenext', text: IMPORTED },
  { file: 'nodenext.cts', module: 'nodenext', resolution: 'nodenext', text: IMPORTED },
  { file: 'required.cts', module: 'nodenext', resolution: 'nodenext', text: REQUIRED },
  { file: 'bundler.ts', module: 'esnext', resolution: 'bundler', text: IMPORTED },
]
