// What a GPU has reached: results as they are read, targets, and the section of the page.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import {
  gpuSection,
  GPU_TARGETS,
  HEADING,
  measuredOf,
  readResults,
  RECORDED,
  timesOf,
  withSection,
  type GpuLane,
  type GpuResults,
} from '../report/gpu.js'
import { resultsPage } from '../report/markdown.js'
import { root } from '../run/suites.js'
import { report } from './reports.js'

function lane(
  name: string,
  role: GpuLane['role'],
  nanoseconds: readonly number[],
  more: Partial<GpuLane> = {},
): GpuLane {
  return { name, role, bytes: 8e6, flops: null, nanoseconds, host: nanoseconds, ...more }
}

const results = (...lanes: readonly GpuLane[]): GpuResults => ({
  turns: 1,
  rounds: 2,
  machines: [{ device: 'A GPU', details: ['1.5 GB', 'an OS'] }],
  workloads: [{ id: 'decode', title: 'attention of one query', lanes }],
  skipped: [
    { id: 'decode', skipped: 'FlashInfer, pages: flashinfer: not installed' },
    { id: 'append-token', skipped: 'torch: not installed' },
  ],
  failed: [],
})

const decode = results(
  lane('kvtide, pages', 'ours', [2000, 2200]),
  lane('kvtide, q8 pages', 'ours', [1000, 1100], { bytes: 4e6 }),
  lane('kvtide, contiguous', 'ours', [1900, 2000]),
  lane('PyTorch, flash', 'peer', [1800, 1980]),
  lane('copy', 'limit', [1700, 1870], { host: [100, 120] }),
)

test('a ratio is of the rounds that both lanes have', t => {
  t.is(timesOf(lane('a', 'ours', [4, 4, 4]), lane('b', 'ours', [2])).median, 2)
})

test('targets are measured in their own direction', t => {
  const found = (says: RegExp): string | undefined => {
    const target = GPU_TARGETS.find(of => of.workload === 'decode' && says.test(of.says))
    return target && measuredOf(target, decode)?.median.toFixed(3)
  }
  t.deepEqual([/read once/, /^PyTorch/, /attention over pages \/ over/, /q8/].map(found), [
    '0.850',
    '0.900',
    '1.077',
    '2.000',
  ])
  const step = GPU_TARGETS.find(({ under }) => under === undefined)
  const steps = {
    ...decode,
    workloads: [{ id: 'step-append', title: 'a step', lanes: [lane(step?.over ?? '', 'ours', [9900])] }],
  }
  t.is(step && measuredOf(step, steps)?.median, 9.9)
  t.is(step && measuredOf(step, decode), undefined)
})

test('every target is about lanes that the programs have', t => {
  const files = [
    ...['append', 'decode', 'mod', 'moves', 'prefill', 'prompt', 'step'].map(name => `src/workloads/${name}.rs`),
    'peers.py',
  ]
  const text = files.map(file => readFileSync(join(root, 'bench/cuda', file), 'utf8')).join('\n')
  for (const { workload, over, under } of GPU_TARGETS) {
    for (const name of [workload, over, under ?? over]) t.true(text.includes(`"${name}"`), name)
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
    '| kvtide, q8 pages | kvtide | 1.05 (1.01 to 1.09) | 1.05 | 3,810 GB/s | 0.85 (0.85 to 0.85) |',
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
  t.is(
    withSection(page, `${HEADING}\n\nnew`),
    '# Results\n\n## First\n\ntext\n\n## On a GPU\n\nnew\n\n## Last\n\nend\n',
  )
  t.is(withSection('# Results\n', `${HEADING}\n\nnew`), '# Results\n\n## On a GPU\n\nnew\n')
  const last = withSection(page.slice(0, page.indexOf('\n## Last')), `${HEADING}\n\nnew`)
  t.is(last, '# Results\n\n## First\n\ntext\n\n## On a GPU\n\nnew\n')
  t.is(withSection(last, `${HEADING}\n\nnew`), last)
})

test('the page of a whole run keeps the section, and the committed page has what is recorded', t => {
  const run = { peers: report(), javascript: report() }
  t.true(resultsPage('1.2.3', run, decode).includes('### decode: attention of one query'))
  t.true(resultsPage('1.2.3', run).includes('Nothing has run on a GPU'))
  const page = readFileSync(join(root, 'bench/RESULTS.md'), 'utf8')
  t.is(withSection(page, gpuSection(readResults())), page, 'npm run bench:cuda writes the section')
})

test('a file that is not there has no results, and one of another form is refused', t => {
  const at = mkdtempSync(join(tmpdir(), 'kvtide-bench-'))
  t.teardown(() => rmSync(at, { recursive: true }))
  t.is(readResults(join(at, 'results.json')), undefined)
  writeFileSync(join(at, 'results.json'), JSON.stringify(decode))
  t.deepEqual(readResults(join(at, 'results.json')), decode)
  for (const other of [null, { ...decode, workloads: 'none' }]) {
    writeFileSync(join(at, 'results.json'), JSON.stringify(other))
    t.throws(() => readResults(join(at, 'results.json')), {
      instanceOf: TypeError,
      message: /expected what `run\.sh bench` writes/,
    })
  }
  t.true(RECORDED.endsWith(join('bench', 'cuda', 'results.json')))
})
