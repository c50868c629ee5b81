// The lane of PyTorch: skipped by name where there is none, and held to the same numbers where there is.
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import { attentionBesidePyTorch } from '../workloads/pytorch.js'

const python = process.env['KVTIDE_BENCH_PYTHON'] ?? 'python3'
const succeeds = (code: string): boolean => spawnSync(python, ['-c', code]).status === 0

test('without PyTorch, or without Python, the workload is skipped by name', async t => {
  const at = mkdtempSync(join(tmpdir(), 'kvtide-pytorch-'))
  t.teardown(() => rmSync(at, { recursive: true }))
  t.like(await attentionBesidePyTorch(64, 1, 1, join(at, 'no-such-python')), { id: 'js-attention-pytorch' })
  // A module that is there and does not load stands for one that is not.
  writeFileSync(join(at, 'torch.py'), 'raise ImportError("no torch for this test")\n')
  const before = process.env['PYTHONPATH']
  process.env['PYTHONPATH'] = at
  const skipped = await attentionBesidePyTorch(64, 1, 1, python)
  if (before === undefined) delete process.env['PYTHONPATH']
  else process.env['PYTHONPATH'] = before
  t.true('skipped' in skipped && skipped.skipped.includes('KVTIDE_BENCH_PYTHON'), JSON.stringify(skipped))
})

const installed = succeeds('import torch') ? test : test.skip

installed('with PyTorch every way takes its turn, and gives what kvtide gives', async t => {
  const workload = await attentionBesidePyTorch(96, 1, 2, python)
  if ('skipped' in workload) return t.fail(workload.skipped)
  t.is(workload.lanes.length, 6)
  t.is(workload.lanes.filter(({ role }) => role === 'peer').length, 4)
  t.deepEqual(
    workload.claims.map(({ id }) => id.replace(/.*\//, '')),
    ['pytorch-over-ours', 'pytorch-over-ours-2', 'difference'],
  )
  t.true(workload.claims.every(({ ratio }) => Number.isFinite(ratio)))
  t.like(workload.claims[2], { met: true, ofThisRun: true })
})
