// Runs the one-screen examples, and checks their output.
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import test from 'ava'

import { onnxTest } from '../support/onnx/available.js'
import { runNode } from '../support/packaging/child.js'

const folder = new URL('../../examples/', import.meta.url)
const files = readdirSync(folder).filter(file => /\.(ts|mjs)$/.test(file) && file !== 'tour.ts')

/** The output of each example besides token ids, which are arbitrary. */
const SHOWN: Readonly<Record<string, RegExp>> = {
  'chat.ts': /computed so far: 84[\s\S]*kept +65 of 95 tokens[\s\S]*found +64 tokens/,
  'speculation.ts': /one by one +([\d ]+)\nlookup +\1\nkept 5 tokens/,
  'tenants.ts':
    /tenant 1: 0 of 168[\s\S]*tenant 1: 160 of 169[\s\S]*tenant 2: 128 of 169[\s\S]*tenant 3: not now, 34 blocks are needed/,
  'transcribe.mjs': /first: ([\d ]+)\nagain: \1\nthe encoder ran 1 time, its keys and values were computed 1 time/,
  'transformers.mjs': /window\? 0 of 327 tokens were cached[\s\S]*sink\? 304 of 325 tokens were cached/,
}

test('every example is looked at', t => t.deepEqual(files.toSorted(), Object.keys(SHOWN).toSorted()))

for (const file of files) {
  onnxTest(file, async t => {
    const at = fileURLToPath(new URL(file, folder))
    t.true(readFileSync(at, 'utf8').split('\n').length <= 50, 'it fits on a screen')
    const standIn =
      file === 'transformers.mjs'
        ? [`--import=${new URL('../support/transformers/stand-in.ts', import.meta.url).href}`]
        : []
    const { code, out, err } = await runNode(['--import=tsx', ...standIn, at], {
      env: { ...process.env, KVTIDE_STAND_IN: 'onnx-community/Qwen3-0.6B-ONNX' },
    })
    t.is(code, 0, err)
    t.regex(out, SHOWN[file] as RegExp)
  })
}
