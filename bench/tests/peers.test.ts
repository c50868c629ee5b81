// The ratios of what bench/peers measures: of the lanes that are recorded they are those that are recorded.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { peersWorkload } from '../report/peers.js'
import type { Recorded } from '../report/recorded.js'
import { claimOf, type Measured, type Workload } from '../report/report.js'

const text = (file: string): string => readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')

const PAGE = text('bench/RESULTS.md')
const { ratios } = JSON.parse(text('bench/recorded.json')) as Recorded

/** A workload on the page: its title, its lanes with their medians as the one round. */
const SECTIONS = PAGE.split('\n### ')
  .slice(1)
  .map(section => {
    const [, title = '', memory = ''] = /^(.*), (new|reused) memory\n/.exec(section) ?? []
    const rows = section.matchAll(/^\| (.+?) \| (kvtide|peer|by hand|limit) \| ([\d.,]+) \|/gm)
    const lanes = [...rows].map(([, name = '', , median = '']): Measured => ({
      name,
      role: 'ours',
      nanoseconds: [Number(median.replaceAll(',', ''))],
    }))
    return { title, memory: memory as Workload['memory'], lanes }
  })

const IDS = [...text('bench/peers/src/workloads/mod.rs').matchAll(/^ {4}(reused|on_new)\("([^"]+)"/gm)].map(
  ([, memory, id = '']) => [id, memory === 'reused' ? 'reused' : 'new'] as const,
)

/** Facts that are told as ratios of their own. */
const FACTS = {
  temporary: 0.127,
  'bytes of pages, f32': 1,
  'bytes of pages, f8e4m3': ratios['attention-pages/f8e4m3-bytes']?.ratio ?? 0,
  'bytes of pages, q8': ratios['attention-pages/q8-bytes']?.ratio ?? 0,
  'bytes of pages, q4': ratios['attention-pages/q4-bytes']?.ratio ?? 0,
}

test('the ratios of every workload are those that are recorded', t => {
  t.is(IDS.length, 21)
  for (const [at, [id, memory]] of IDS.entries()) {
    const section = SECTIONS[at]
    t.is(section?.memory, memory, id)
    const { claims } = peersWorkload(id, memory, {
      title: section?.title ?? '',
      operation: 'token',
      lanes: section?.lanes ?? [],
      facts: FACTS,
    })
    t.deepEqual(
      claims.map(claim => claim.id),
      Object.keys(ratios).filter(name => name.startsWith(`${id}/`)),
      id,
    )
    for (const { id: name, says, ratio } of claims) {
      // The page has three digits of a median.
      const recorded = ratios[name]?.ratio ?? Number.NaN
      t.true(Math.abs(ratio / recorded - 1) < 0.02, `${name}: ${ratio}, recorded ${recorded}`)
      t.true(PAGE.includes(`- ${says}: `), says)
    }
  }
})

test('no two ratios share an id, and targets are those of the page', t => {
  const claims = IDS.flatMap(
    ([id, memory], at) =>
      peersWorkload(id, memory, { title: '', operation: '', lanes: SECTIONS[at]?.lanes ?? [], facts: FACTS }).claims,
  )
  t.is(new Set(claims.map(({ id }) => id)).size, claims.length)
  const targets =
    PAGE.split('## Targets')[1]
      ?.split('## Workloads')[0]
      ?.split('\n')
      .filter(line =>
        SECTIONS.slice(0, IDS.length).some(section =>
          line.startsWith(`| ${section.title}, ${section.memory} memory |`),
        ),
      ) ?? []
  t.is(claims.filter(({ met }) => met !== null).length, targets.length)
  t.throws(() => peersWorkload('other', 'new', { title: '', operation: '', lanes: [], facts: {} }), {
    instanceOf: RangeError,
    message: /unknown workload other/,
  })
})

const lanes: Measured[] = [
  ['ours', [2, 2, 4]],
  ['peer', [1, 1, 1]],
].map(([name, nanoseconds]) => ({ name, role: 'ours', nanoseconds }) as Measured)

test('a ratio is of two lanes, is held against a bound and against others', t => {
  const of = { id: 'id', over: 'ours', under: 'peer', toReach: { atMost: 1.5 } }
  t.like(claimOf(lanes, of), { says: 'ours / peer', ratio: 2, met: false, limit: null, why: null })
  t.like(claimOf(lanes, { ...of, over: 'peer', under: 'ours', toReach: { atLeast: 0.5 }, limit: ['ours', 'peer'] }), {
    ratio: 0.5,
    met: true,
    limit: 2,
  })
  t.like(claimOf(lanes, { ...of, base: ['peer', 'ours'], limit: ['peer', 'peer'], toReach: 'more', why: 'so' }), {
    ratio: 4,
    low: 4,
    met: null,
    limit: 2,
    why: 'so',
  })
  t.throws(() => claimOf(lanes, { ...of, over: 'nobody' }), {
    instanceOf: RangeError,
    message: 'no lane is called nobody',
  })
})
