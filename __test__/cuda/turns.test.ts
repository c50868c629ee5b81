// `run.sh bench`: turns of two programs, what they leave put together, and peers.py where there is no PyTorch.
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { readResults } from '../../bench/report/gpu.js'
import { folder, root, type TurnReport } from '../support/packaging/scripts.js'
import { asked, merged, turnsOf } from '../../scripts/cuda/carried/turns.mjs'
import { CARRIED } from '../../scripts/cuda/bundle.mjs'

const lane = (name: string, ...nanoseconds: number[]) => ({ name, role: 'ours' as const, bytes: 1, flops: null, nanoseconds, host: nanoseconds })

function reported(more: Partial<TurnReport> = {}): TurnReport {
  return { machine: null, workloads: [], skipped: [], failed: [], ...more }
}

const ours = (round: number): TurnReport => reported({ machine: { device: 'A GPU', details: [] }, workloads: [{ id: 'decode', title: 'of ours', lanes: [lane('kvtide', round)] }] })

test('programs take turns, and one that measures nothing is not run again', async t => {
  const order: string[] = []
  const program = (name: string, report: TurnReport) => async (): Promise<TurnReport> => {
    order.push(name)
    return report
  }
  const reports = await turnsOf({ cuda: program('cuda', ours(1)), peers: program('peers', reported({ skipped: [{ id: 'decode', skipped: 'torch' }] })) }, 3)
  t.deepEqual(order, ['cuda', 'peers', 'cuda', 'cuda'])
  t.deepEqual([reports['cuda']?.length, reports['peers']?.length], [3, 1])
})

test('lanes of all programs lie in one workload, with the rounds of all turns', t => {
  const peers = reported({ machine: { device: 'A GPU', details: ['PyTorch 9'] }, workloads: [{ id: 'decode', title: 'theirs', lanes: [lane('peer', 7)] }], skipped: [{ id: 'decode', skipped: 'vllm' }] })
  const results = merged({ cuda: [ours(1), ours(2)], peers: [peers, peers] }, { turns: 2, rounds: 1 })
  t.deepEqual(results.workloads, [{ id: 'decode', title: 'of ours', lanes: [lane('kvtide', 1, 2), lane('peer', 7, 7)] }])
  t.deepEqual(results.machines, [{ device: 'A GPU', details: [] }, { device: 'A GPU', details: ['PyTorch 9'] }])
  t.deepEqual(results.skipped, [{ id: 'decode', skipped: 'vllm' }])
})

test('what is asked for has defaults, and is refused by name', t => {
  t.deepEqual(asked([]), { out: 'results.json', rounds: 11, turns: 3, only: '', python: 'python3' })
  t.like(asked(['--turns', '1', '--rounds=5', '--only', 'decode']), { turns: 1, rounds: 5, only: 'decode' })
  t.throws(() => asked(['--turns', '0']), { message: '--turns 0: expected a whole number above 0' })
  t.throws(() => asked(['--often']), { message: /--often/ })
})

const onLinux = process.platform === 'linux' ? test : test.skip

/** The carried files in a folder, with this node, and a program that leaves a report. */
function carried(at: string, program: string): void {
  mkdirSync(join(at, 'bench'))
  for (const file of CARRIED) copyFileSync(join(root, 'scripts', 'cuda', 'carried', file), join(at, file))
  copyFileSync(join(root, 'bench', 'cuda', 'peers.py'), join(at, 'bench', 'peers.py'))
  writeFileSync(join(at, 'node'), `#!/bin/sh\nexec '${process.execPath}' "$@"\n`)
  writeFileSync(join(at, 'bench', 'kvtide-bench-cuda'), program)
  writeFileSync(join(at, 'python'), '#!/bin/sh\necho "peers with $LD_LIBRARY_PATH"\nexit 2\n')
  for (const file of ['run.sh', 'node', 'python', join('bench', 'kvtide-bench-cuda')]) chmodSync(join(at, file), 0o755)
}

onLinux('run.sh bench writes one file, and fails where a program has', t => {
  const at = folder(t)
  carried(at, `#!/bin/sh\nfor out; do :; done\necho '${JSON.stringify({ ...ours(5), suite: 'cuda', rounds: 1 })}' > "$out"\n`)
  const line = (python: string): string[] => ['bench', '--out', join(at, 'results.json'), '--turns', '2', '--rounds', '1', '--python', python]
  const run = (python: string) => spawnSync(join(at, 'run.sh'), line(python), { env: { PATH: process.env['PATH'], LD_LIBRARY_PATH: '/of/mine' }, encoding: 'utf8' })
  const absent = run('no-such-python')
  t.is(absent.status, 0, absent.stderr)
  t.true(absent.stdout.includes('SKIPPED: cuda-peers: no-such-python was not found'), absent.stdout)
  const results = readResults(join(at, 'results.json'))
  t.deepEqual(results?.workloads[0]?.lanes[0]?.nanoseconds, [5, 5])
  const broken = run(join(at, 'python'))
  t.is(broken.status, 1)
  // PyTorch sees the libraries that were asked for before run.sh looked for more.
  t.true(broken.stdout.includes('peers with /of/mine\n'), broken.stdout)
  t.true(broken.stdout.includes('FAILED: cuda-peers:') && broken.stdout.includes('has ended with 2'), broken.stdout)
})

const python = spawnSync('python3', ['-c', 'import ast']).status === 0 ? test : test.skip

python('peers.py names what is not installed, and measures the rest', t => {
  const at = folder(t)
  // A module that is there and does not load stands for one that is not.
  writeFileSync(join(at, 'torch.py'), 'raise ImportError("no torch for this test")\n')
  const out = join(at, 'peers.json')
  const text = execFileSync('python3', ['-B', join(root, 'bench', 'cuda', 'peers.py'), '--only', 'append', '--out', out], { env: { ...process.env, PYTHONPATH: at }, encoding: 'utf8' })
  t.is(text, 'SKIPPED: torch: ImportError: no torch for this test\n')
  const report = JSON.parse(readFileSync(out, 'utf8')) as TurnReport
  t.deepEqual(report.skipped, ['append-token', 'append-chunk'].map(id => ({ id, skipped: 'torch: ImportError: no torch for this test' })))
  t.deepEqual([report.machine, report.workloads, report.failed], [null, [], []])
  t.not(spawnSync('python3', ['-B', join(root, 'bench', 'cuda', 'peers.py'), '--rounds', '0']).status, 0)
})
