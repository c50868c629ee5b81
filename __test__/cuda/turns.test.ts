// `run.sh bench`: turns of two programs, what they leave put together, and peers.py where there is no PyTorch.
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder, root, type TurnReport } from '../support/packaging/scripts.js'
import { asked, merged, turnsOf } from '../../scripts/cuda/carried/turns.mjs'
import { CARRIED } from '../../scripts/cuda/bundle.mjs'

const lane = (name: string, ...nanoseconds: number[]) => ({
  name,
  role: 'ours' as const,
  bytes: 1,
  flops: null,
  nanoseconds,
  host: nanoseconds,
})

function reported(more: Partial<TurnReport> = {}): TurnReport {
  return { machine: null, workloads: [], skipped: [], failed: [], ...more }
}

const ours = (round: number): TurnReport =>
  reported({
    machine: { device: 'A GPU', details: [] },
    workloads: [{ id: 'decode', title: 'of ours', lanes: [lane('kvtide', round)] }],
  })

test('programs take turns, and one that measures nothing is not run again', async t => {
  const order: string[] = []
  const program = (name: string, report: TurnReport) => async (): Promise<TurnReport> => {
    order.push(name)
    return report
  }
  const reports = await turnsOf(
    {
      cuda: program('cuda', ours(1)),
      peers: program('peers', reported({ skipped: [{ id: 'decode', skipped: 'torch' }] })),
    },
    3,
  )
  t.deepEqual(order, ['cuda', 'peers', 'cuda', 'cuda'])
  t.deepEqual([reports['cuda']?.length, reports['peers']?.length], [3, 1])
})

test('lanes of all programs lie in one workload, with the rounds of all turns', t => {
  const peers = reported({
    machine: { device: 'A GPU', details: ['PyTorch 9'] },
    workloads: [{ id: 'decode', title: 'theirs', lanes: [lane('peer', 7)] }],
    skipped: [{ id: 'decode', skipped: 'vllm' }],
  })
  const results = merged({ cuda: [ours(1), ours(2)], peers: [peers, peers] }, { turns: 2, rounds: 1 })
  t.deepEqual(results.workloads, [
    { id: 'decode', title: 'of ours', lanes: [lane('kvtide', 1, 2), lane('peer', 7, 7)] },
  ])
  t.deepEqual(results.machines, [
    { device: 'A GPU', details: [] },
    { device: 'A GPU', details: ['PyTorch 9'] },
  ])
  t.deepEqual(results.skipped, [{ id: 'decode', skipped: 'vllm' }])
})

test('what is asked for has defaults, and is refused by name', t => {
  t.deepEqual(asked([]), { rounds: 11, turns: 3, starts: [''], python: 'python3' })
  t.like(asked(['--turns', '1', 'decode', '--rounds=5', 'step']), { turns: 1, rounds: 5, starts: ['decode', 'step'] })
  t.throws(() => asked(['--turns', '0']), { message: '--turns 0: expected a whole number above 0' })
  t.throws(() => asked(['--often']), { message: /--often/ })
})

const onLinux = process.platform === 'linux' ? test : test.skip

/** Writes a folder like that of the archive: run.sh, this node, a program that writes a report, and a doctor that reports whether there is a GPU. */
function carried(at: string, program: string, device: string): void {
  for (const of of ['bench', 'kernels', 'package/lib/cli']) mkdirSync(join(at, of), { recursive: true })
  writeFileSync(join(at, 'package', 'package.json'), '{ "type": "module" }')
  writeFileSync(
    join(at, 'package', 'lib', 'cli', 'doctor.js'),
    `export const doctor = { run: () => ({ text: 'device cuda     ${device}' }) }\n`,
  )
  for (const file of CARRIED) copyFileSync(join(root, 'scripts', 'cuda', 'carried', file), join(at, file))
  copyFileSync(join(root, 'bench', 'cuda', 'peers.py'), join(at, 'bench', 'peers.py'))
  // It looks through the whole disk.
  writeFileSync(join(at, 'find'), '#!/bin/sh\n')
  writeFileSync(join(at, 'node'), `#!/bin/sh\nexec '${process.execPath}' "$@"\n`)
  writeFileSync(join(at, 'bench', 'kvtide-bench-cuda'), program)
  writeFileSync(join(at, 'python'), '#!/bin/sh\necho "peers with $LD_LIBRARY_PATH"\nexit 2\n')
  for (const file of ['run.sh', 'find', 'python', 'node', join('bench', 'kvtide-bench-cuda')])
    chmodSync(join(at, file), 0o755)
}

onLinux('run.sh bench writes one file, and fails where a program has', t => {
  const at = folder(t)
  carried(
    at,
    `#!/bin/sh\nfor out; do :; done\necho '${JSON.stringify({ ...ours(5), suite: 'cuda', rounds: 1 })}' > "$out"\n`,
    'usable',
  )
  const line = (python: string): string[] => [
    '--out',
    at,
    'bench',
    'decode',
    '--turns',
    '2',
    '--rounds',
    '1',
    '--python',
    python,
  ]
  const run = (python: string) =>
    spawnSync(join(at, 'run.sh'), line(python), {
      env: { PATH: `${at}:${process.env['PATH']}`, LD_LIBRARY_PATH: '/of/mine' },
      encoding: 'utf8',
    })
  const absent = run('no-such-python')
  t.is(absent.status, 0, absent.stderr)
  t.true(absent.stdout.includes('SKIPPED: cuda-peers: no-such-python was not found'), absent.stdout)
  const results = JSON.parse(readFileSync(join(at, 'results-decode.json'), 'utf8')) as TurnReport
  t.deepEqual(results.workloads[0]?.lanes[0]?.nanoseconds, [5, 5])
  const broken = run(join(at, 'python'))
  t.is(broken.status, 1)
  t.regex(readFileSync(join(at, 'summary.txt'), 'utf8'), /^bench decode {2}1 passed, 1 failed$/m)
  t.true(readFileSync(join(at, 'bench.log'), 'utf8').includes('peers with /of/mine\n'))
  // PyTorch sees the libraries that were asked for before run.sh looked for more.
  t.true(broken.stdout.includes('peers with /of/mine\n'), broken.stdout)
  t.true(broken.stdout.includes('FAILED: cuda-peers:') && broken.stdout.includes('has ended with 2'), broken.stdout)
})

onLinux('without a GPU all parts are skipped by name, and that fails where a GPU is required', t => {
  const at = folder(t)
  carried(at, '#!/bin/sh\nexit 1\n', 'not usable: no NVIDIA driver: libcuda.so.1 not found')
  writeFileSync(join(at, 'kernels', 'moves'), "#!/bin/sh\necho 'one: test'\n")
  chmodSync(join(at, 'kernels', 'moves'), 0o755)
  const run = (...args: string[]) =>
    spawnSync(join(at, 'run.sh'), args, {
      env: { PATH: `${at}:${process.env['PATH']}`, OUT: join(at, 'out') },
      encoding: 'utf8',
    })
  const parts = ['kernels', 'sanitize', 'bench', 'prefill']
  const skipped = run(...parts)
  t.is(skipped.status, 0, skipped.stderr)
  const text = readFileSync(join(at, 'out', 'summary.txt'), 'utf8')
  for (const line of [
    /^kernels +0 passed, 0 failed, 1 skipped$/m,
    /^memcheck +SKIPPED: no NVIDIA driver/m,
    /^bench prefill +SKIPPED: no NVIDIA driver/m,
    /^SKIPPED: 1 tests need a GPU/m,
  ])
    t.regex(text, line)
  t.is(run('--require-gpu', ...parts).status, 3)
  const unknown = run('kernel')
  t.deepEqual([unknown.status, unknown.stderr], [2, 'kernel: expected one of caches, kernels, sanitize, bench\n'])
})

const python = spawnSync('python3', ['-c', 'import ast']).status === 0 ? test : test.skip

python('peers.py names what is not installed, and measures the rest', t => {
  const at = folder(t)
  // A module that is there and does not load stands for one that is not.
  writeFileSync(join(at, 'torch.py'), 'raise ImportError("no torch for this test")\n')
  const out = join(at, 'peers.json')
  const text = execFileSync(
    'python3',
    ['-B', join(root, 'bench', 'cuda', 'peers.py'), '--only', 'append', '--out', out],
    { env: { ...process.env, PYTHONPATH: at }, encoding: 'utf8' },
  )
  t.is(text, 'SKIPPED: torch: ImportError: no torch for this test\n')
  const report = JSON.parse(readFileSync(out, 'utf8')) as TurnReport
  t.deepEqual(
    report.skipped,
    ['append-token', 'append-chunk'].map(id => ({ id, skipped: 'torch: ImportError: no torch for this test' })),
  )
  t.deepEqual([report.machine, report.workloads, report.failed], [null, [], []])
  t.not(spawnSync('python3', ['-B', join(root, 'bench', 'cuda', 'peers.py'), '--rounds', '0']).status, 0)
})
