// Background work of every kind, while what it works on changes, is aborted or is disposed of: random programs, each with a seed.
import test from 'ava'

import { memoryStats } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { collectAll, collected } from '../support/garbage.js'
import { Racing } from '../support/racing/racing.js'

const PROGRAMS = Number(process.env['KVTIDE_RACES'] ?? 40)
const STEPS = 150

/** Events that must have happened in a run of all programs: otherwise they test less than they say. */
const HAPPENS = [
  'append',
  'attend in the background',
  'check a loaded sequence',
  'dispose',
  'dispose in the background',
  'draft',
  'events',
  'flush',
  'load a cache',
  'load a sequence',
  'load prompts',
  'match with tiers',
  'match with tiers: ABORTED',
  'match with tiers: DISPOSED',
  'read in the background',
  'restore',
  'save a cache',
  'save a sequence',
  'save a sequence to a file',
]

test.serial('random programs: every row is right, every call ends, and all memory comes back', async t => {
  const folder = await folderOf(t)
  await collectAll()
  const [start, first] = [memoryStats().usedBytes, Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0xffffff)]
  t.log(`KVTIDE_SEED=${first} KVTIDE_RACES=${PROGRAMS}`)
  const seen = new Map<string, number>()
  for (let seed = first; seed < first + PROGRAMS; seed++) {
    const racing = new Racing(seed, folder)
    try {
      for (let step = 0; step < STEPS; step++) await racing.step()
      await racing.settle()
    } catch (error) {
      t.log(`KVTIDE_SEED=${seed} KVTIDE_RACES=1`)
      throw error
    }
    for (const [what, count] of racing.seen) seen.set(what, (seen.get(what) ?? 0) + count)
  }
  t.log(Object.fromEntries(seen))
  if (PROGRAMS >= 40) for (const what of HAPPENS) t.true(seen.has(what), what)
  t.true(await collected(() => memoryStats().usedBytes <= start), `${memoryStats().usedBytes - start} bytes are left`)
})
