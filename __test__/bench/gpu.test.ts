// What a GPU has reached: results as they are read, targets, and the section of the page.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import test from 'ava'

import { checkResults, gpuLane, readResults, RECORDED, shareOf, timesOf, type GpuLane, type GpuResults } from '../../bench/report/gpu-results.js'
import { gpuSection, GPU_TARGETS, HEADING, isReached, measuredOf, withSection } from '../../bench/report/gpu-section.js'
import { resultsPage } from '../../bench/report/markdown.js'
import { report } from './reports.js'

function lane(name: string, role: GpuLane['role'], nanoseconds: readonly number[], more: Partial<GpuLane> = {}): GpuLane {
  return { name, role, bytes: 8e6, flops: null, nanoseconds, host: nanoseconds, ...more }
}

const results = (...lanes: readonly GpuLane[]): GpuResults => ({
  turns: 1,
  rounds: 2,
  machines: [{ device: 'A GPU', details: ['1.5 GB', 'an OS'] }],
  workloads: [{ id: 'decode', title: 'attention of one query', lanes }],
  skipped: [{ id: 'decode', skipped: 'FlashInfer, pages: flashinfer: not installed' }, { id: 'append-token', skipped: 'torch: not installed' }],
  failed: [],
})

const decode = results(
  lane('kvtide, pages', 'ours', [2000, 2200]),
  lane('kvtide, q8 pages', 'ours', [1000, 1100], { bytes: 4e6 }),
  lane('kvtide, contiguous', 'ours', [1900, 2000]),
  lane('PyTorch, flash', 'peer', [1800, 1980]),
  lane('copy', 'limit', [1700, 1870], { host: [100, 120] }),
)

test('a share compares rates, a ratio times', t => {
  const [pages, low, copy] = ['kvtide, pages', 'kvtide, q8 pages', 'copy'].map(name => gpuLane(decode, 'decode', name)) as [GpuLane, GpuLane, GpuLane]
  t.is(shareOf(pages, copy)?.median, 1785 / 2100)
  t.is(shareOf(low, copy)?.median, 1785 / 1050 / 2)
  t.is(timesOf(copy, pages).median, 1785 / 2100)
  t.is(shareOf({ ...pages, flops: 1 }, copy), undefined)
  // One lane has lost a turn.
  t.is(timesOf(lane('a', 'ours', [4, 4, 4]), lane('b', 'ours', [2])).median, 2)
})

test('targets are met or not by what was measured, in their own direction', t => {
  const found = (says: RegExp) => {
    const target = GPU_TARGETS.find(of => of.workload === 'decode' && says.test(of.says))
    const measured = target && measuredOf(target, decode)
    return target && measured && [measured.median.toFixed(3), isReached(target, measured)]
  }
  t.deepEqual(found(/read once/), ['0.850', true])
  t.deepEqual(found(/^PyTorch/), ['0.900', false])
  t.deepEqual(found(/attention over pages \/ over/), ['1.077', false])
  t.deepEqual(found(/q8/), ['2.000', true])
  const step = GPU_TARGETS.find(({ by }) => by === 'microseconds')
  t.is(step && measuredOf(step, decode), undefined)
  t.true(step !== undefined && isReached(step, { median: 9.9, p10: 9, p90: 11 }) && !isReached(step, { median: 10.1, p10: 9, p90: 11 }))
})

test('every target is about lanes that the programs have', t => {
  const sources = ['append', 'decode', 'graph', 'moves', 'prefill', 'prompt', 'step'].map(name => readFileSync(fileURLToPath(new URL(`../../bench/cuda/src/workloads/${name}.rs`, import.meta.url)), 'utf8'))
  const text = [...sources, readFileSync(fileURLToPath(new URL('../../bench/cuda/src/workloads/mod.rs', import.meta.url)), 'utf8'), readFileSync(fileURLToPath(new URL('../../bench/cuda/peers.py', import.meta.url)), 'utf8')].join('\n')
  for (const { workload, lane: ours, against } of GPU_TARGETS) {
    for (const name of [workload, ours, against ?? ours]) t.true(text.includes(`"${name}"`), name)
  }
})

test('the section has the machine, the targets and every lane', t => {
  const section = gpuSection(decode)
  t.true(section.startsWith(`${HEADING}\n`))
  for (const part of [
    '- A GPU, 1.5 GB, an OS',
    '| attention over bf16 pages / over q8 pages | at least 1.6 | 2 (2 to 2) | met |',
    '**not met**',
    '### decode: attention of one query',
    '| kvtide, pages | kvtide | 2.1 (2.02 to 2.18) | 2.1 | 3,810 GB/s | 0.85 (0.85 to 0.85) |',
    '| copy | limit | 1.79 (1.72 to 1.85) | 0.11 | 4,482 GB/s |  |',
    'PyTorch, cat / kvtide | at least 1 |  | not measured: torch: not installed |',
    'candle, cat / kvtide | at least 1 |  | not measured |',
    '- `decode`: FlashInfer, pages: flashinfer: not installed',
  ]) {
    t.true(section.includes(part), `${part}\n${section}`)
  }
  t.false(/undefined|NaN|\[object/.test(section))
})

test('without results the section says that nothing has run, and what is to be reached', t => {
  for (const nothing of [undefined, { ...decode, workloads: [] }]) {
    const section = gpuSection(nothing)
    t.true(section.includes('Nothing has run on a GPU'))
    t.true(section.includes('| append of a step in one launch, microseconds | at most 10 |'))
    t.false(/met|measured \(/.test(section.replace('How it will be measured', '')))
  }
})

test('the section takes the place of the one before it, and nothing else changes', t => {
  const page = '# Results\n\n## First\n\ntext\n\n## On a GPU\n\nold\n\n### of it\n\n## Last\n\nend\n'
  t.is(withSection(page, `${HEADING}\n\nnew`), '# Results\n\n## First\n\ntext\n\n## On a GPU\n\nnew\n\n## Last\n\nend\n')
  t.is(withSection('# Results\n', `${HEADING}\n\nnew`), '# Results\n\n## On a GPU\n\nnew\n')
  const last = withSection(page.slice(0, page.indexOf('\n## Last')), `${HEADING}\n\nnew`)
  t.is(last, '# Results\n\n## First\n\ntext\n\n## On a GPU\n\nnew\n')
  t.is(withSection(last, `${HEADING}\n\nnew`), last)
})

test('the page of a whole run keeps the section, and the committed page has what is recorded', t => {
  const run = { peers: report(), javascript: report(), native: 'caches  1 ns\n' }
  t.true(resultsPage('1.2.3', run, decode).includes('### decode: attention of one query'))
  t.true(resultsPage('1.2.3', run).includes('Nothing has run on a GPU'))
  const page = readFileSync(fileURLToPath(new URL('../../bench/RESULTS.md', import.meta.url)), 'utf8')
  t.is(withSection(page, gpuSection(readResults())), page, 'npm run bench:cuda writes the section')
})

test('results of another form are refused with the place that differs', t => {
  const wrong = (change: object, message: RegExp): void => void t.throws(() => checkResults({ ...decode, ...change }), { instanceOf: TypeError, message })
  const of = (more: object): object => ({ workloads: [{ id: 'a', title: 'b', lanes: [{ ...decode.workloads[0]?.lanes[0], ...more }] }] })
  t.deepEqual(checkResults(JSON.parse(JSON.stringify(decode))), decode)
  wrong({ turns: 0 }, /^turns: 0, expected/)
  wrong({ machines: 'none' }, /^machines: expected a list/)
  wrong({ workloads: [{ id: 'a', lanes: [] }] }, /^workloads\[0\]: expected an id/)
  wrong(of({ role: 'mine' }), /^workloads\[0\]\.lanes\[0\]\.role: "mine"/)
  wrong(of({ bytes: -1 }), /lanes\[0\]\.bytes: -1/)
  wrong(of({ nanoseconds: [] }), /lanes\[0\]\.nanoseconds/)
  wrong(of({ host: ['1'] }), /lanes\[0\]\.host/)
  t.throws(() => checkResults(null), { message: /^results: expected/ })
})

test('a file that is not there has no results', t => {
  const at = mkdtempSync(join(tmpdir(), 'kvtide-gpu-'))
  t.teardown(() => rmSync(at, { recursive: true }))
  t.is(readResults(join(at, 'results.json')), undefined)
  writeFileSync(join(at, 'results.json'), JSON.stringify(decode))
  t.deepEqual(readResults(join(at, 'results.json')), decode)
  t.true(RECORDED.endsWith(join('bench', 'cuda', 'results.json')))
})
