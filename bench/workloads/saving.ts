// Measures saving a cache to a file and loading it, against `cat` of the same file on the same disk.
//
// A save keeps the old file until the new one is complete, and `cat` is made to do the same. If it wrote over the old file, it would get the same
// memory that this file had in the page cache, which on a virtual machine is several times as fast as memory that it has not used yet.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'

import { PagedKvCache, type Sequence } from 'kvtide'

import { type Ratio, workloadOf, type Workload } from '../report/report.js'
import { type Contestant, lane, measure } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'

/** Sizes of a model of a billion weights: 32 KiB per token. */
const [LAYERS, HEADS, DIM, BLOCK] = [16, 8, 64, 16]
const AT_ONCE = 1024

function shell(command: string): void {
  const { status, stderr } = spawnSync('sh', ['-c', command], { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command}: ${stderr}`)
}

function filled(tokens: number): { cache: PagedKvCache; sequence: Sequence } {
  const cache = new PagedKvCache({
    capacity: tokens / BLOCK + 1,
    blockSize: BLOCK,
    numLayers: LAYERS,
    numKvHeads: HEADS,
    headDim: DIM,
    dtype: 'f16',
  })
  const data = new Uint16Array(LAYERS * HEADS * AT_ONCE * DIM)
  for (let at = 0; at < data.length; at++) data[at] = (at * 2_654_435_761) >>> 18
  const rows = { data, shape: [LAYERS, HEADS, AT_ONCE, DIM], dtype: 'f16' as const }
  const sequence = cache.openSequence()
  for (let from = 0; from < tokens; from += AT_ONCE)
    sequence.append({ tokens: Array.from({ length: AT_ONCE }, (_, at) => from + at), k: rows, v: rows })
  return { cache, sequence }
}

/** The ratios of `cat`, and of reading the file into memory, to kvtide. */
function ratiosOf(id: string): Ratio[] {
  return [
    {
      id: `${id}/save-cat-over-ours`,
      over: 'cat to a new file, flushed, renamed',
      under: 'kvtide, save',
      toReach: { atLeast: 0.7 },
    },
    { id: `${id}/load-cat-over-ours`, over: 'cat to /dev/null', under: 'kvtide, load', toReach: { atLeast: 0.7 } },
    {
      id: `${id}/load-read-over-ours`,
      says: 'read into new memory / kvtide load',
      over: 'read into new memory',
      under: 'kvtide, load',
      toReach: 'more',
    },
    {
      id: `${id}/sequence-cat-over-ours`,
      over: 'cat to /dev/null',
      under: 'kvtide, load a sequence',
      toReach: { atLeast: 0.7 },
    },
    {
      id: `${id}/sequence-evicting-cat-over-ours`,
      over: 'cat to /dev/null',
      under: 'kvtide, load a sequence that evicts others',
      toReach: 'more',
    },
  ]
}

export async function saving(mebibytes: number, rounds: number): Promise<Workload> {
  const tokens = mebibytes * 32
  const folder = join(REPORTS, 'saving')
  mkdirSync(folder, { recursive: true })
  const [file, copy, over, chat] = ['all.kv', 'copy', 'over', 'chat.kv'].map(name => join(folder, name)) as [
    string,
    string,
    string,
    string,
  ]
  const { cache, sequence } = filled(tokens)
  await sequence.save(chat)
  await cache.save(file)
  sequence.drop()
  let loaded: PagedKvCache | undefined
  let again: Sequence | undefined
  // Cached blocks are evicted only after the whole file is verified, which is one more pass over it.
  const sequenceLane = (name: string, before: () => void): Contestant =>
    lane('ours', name, 1, async () => void (again = await cache.loadSequence(chat)), {
      shared: true,
      before,
      after: () => again?.drop(),
    })
  const measured = await measure(
    [
      lane('limit', 'cat over the old file, flushed', 1, () => shell(`cat ${file} > ${over} && sync ${over}`), {
        shared: true,
      }),
      lane(
        'peer',
        'cat to a new file, flushed, renamed',
        1,
        () => shell(`cat ${file} > ${copy}.new && sync ${copy}.new && mv ${copy}.new ${copy}`),
        { shared: true },
      ),
      lane('ours', 'kvtide, save', 1, async () => void (await cache.save(file)), { shared: true }),
      lane('peer', 'cat to /dev/null', 1, () => shell(`cat ${file} > /dev/null`), { shared: true }),
      lane('limit', 'read into new memory', 1, () => void readFileSync(file).length, { shared: true }),
      lane('ours', 'kvtide, load', 1, async () => void (loaded = await PagedKvCache.load(file)), {
        shared: true,
        after: () => loaded?.dispose(),
      }),
      sequenceLane('kvtide, load a sequence', () => cache.forgetPrefixes()),
      sequenceLane('kvtide, load a sequence that evicts others', () => {}),
    ],
    rounds,
    undefined,
    1,
  )
  rmSync(folder, { recursive: true })
  cache.dispose()
  const id = `js-saving-${mebibytes}`
  return workloadOf(
    id,
    `TypeScript: a cache of ${mebibytes} MiB to a file and back, ${tokens} tokens of ${LAYERS} layers of ${HEADS} heads of ${DIM}, f16`,
    'file',
    measured,
    ratiosOf(id),
  )
}
