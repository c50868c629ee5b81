// The memory of a process stays flat while objects of every kind are made again and again, disposed of or left to the garbage collection.
import { fileURLToPath } from 'node:url'

import test from 'ava'

import { CYCLES } from '../support/cycles.js'
import { runNode } from '../support/packaging/child.js'

const PROGRAM = fileURLToPath(new URL('../support/cycles.ts', import.meta.url))
const COUNT = Number(process.env['KVTIDE_CYCLES'] ?? 10_000)
const MORE_MAX = 8 * 2 ** 20

for (const way of ['dispose', 'collect'] as const) {
  test(`${COUNT} cycles of every kind leave no memory behind: ${way}`, async t => {
    // With a young generation of a fixed size, the memory of the process does not grow with V8's.
    const node = ['--import=tsx', '--expose-gc', '--max-semi-space-size=1']
    const args = [...node, PROGRAM, way, String(COUNT), String(MORE_MAX), ...Object.keys(CYCLES)]
    const { code, out, err } = await runNode(args)
    t.deepEqual({ code, err }, { code: 0, err: '' })
    const grown = JSON.parse(out) as Record<string, { rss: number; native: number }>
    t.deepEqual(Object.keys(grown), Object.keys(CYCLES))
    t.log(
      Object.fromEntries(Object.entries(grown).map(([name, { rss }]) => [name, `${(rss / 2 ** 20).toFixed(1)} MiB`])),
    )
    for (const [name, { rss, native }] of Object.entries(grown)) {
      t.true(rss < MORE_MAX, `${name}: ${rss} bytes more`)
      t.true(native < 2 ** 16, `${name}: ${native} bytes of native memory more`)
    }
  })
}
