// The reader in Python: it reads saved files, and detects damage.
import { execFileSync, spawnSync } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import test from 'ava'

import { PagedKvCache, RotatingKvCache } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { root } from '../support/packaging/child.js'

/** A Python with the modules that the reader needs: the one on the path, or the system's. */
const python = ['python3', '/usr/bin/python3'].find(
  name => spawnSync(name, ['-c', 'import numpy, xxhash']).status === 0,
)
const reader = join(root, 'examples', 'read.py')

test('it fits in 60 lines', async t => t.true((await readFile(reader, 'utf8')).trimEnd().split('\n').length <= 60))

const rows = (n: number) => ({ data: Float32Array.from({ length: 2 * n * 2 }, (_, at) => at), shape: [2, 1, n, 2] })

const withPython = python === undefined ? test.skip : test

withPython('files of each kind are read; SKIPPED without python3, numpy and xxhash', async t => {
  const folder = await folderOf(t)
  const file = join(folder, 'file.kv')
  const run = (): string =>
    execFileSync(python as string, [reader, file], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  using cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 2 })
  const chat = cache.openSequence()
  chat.append({ tokens: [5, 6, 7, 8, 9, 10], k: rows(6), v: rows(6) })
  await chat.save(file)
  t.regex(
    run(),
    /^sequence, written by kvtide [\d.]+: .*\npages\.0: float32 \[2, 2, 2, 1, 4, 2\]\nids: 5 6 7 8 9 10\nK: 0\.0 2\.0 4\.0 6\.0 8\.0 10\.0\n$/,
  )
  await cache.save(file)
  t.regex(run(), /^cache, .*\npages\.0: float32 \[1, 2, 2, 1, 4, 2\]\n$/)
  const whole = await readFile(file)
  for (const at of [9, whole.length >> 1, whole.length - 300, whole.length - 1]) {
    const damaged = Uint8Array.from(whole)
    damaged[at] = (damaged[at] as number) ^ 1
    await writeFile(file, damaged)
    t.throws(run, undefined, `byte ${at}`)
  }
  using rotating = new RotatingKvCache({ maxSeqLen: 4 })
  const k = { data: new Float32Array(6), shape: [1, 1, 6, 1] }
  rotating.append(k, k)
  await rotating.save(file)
  t.regex(run(), /^rotating-kv, .*"currentSeqLen": 6.*\nk: float32 \[1, 1, 4, 1\]\nv: float32 \[1, 1, 4, 1\]\n$/)
})
