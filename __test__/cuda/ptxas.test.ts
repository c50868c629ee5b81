// What the assembler prints is read as it is, and a kernel that spills is named.
import test from 'ava'

import { assembled, exactFiles, table } from '../../scripts/cuda/kernels.mjs'

const PRINTED = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'shift_16' for 'sm_90'
ptxas info    : Function properties for shift_16
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 56 registers, used 0 barriers
ptxas info    : Compiling entry function 'advance' for 'sm_90'
ptxas info    : Function properties for advance
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 8 bytes cumulative stack size
`

test('registers and spills are read kernel by kernel', t => {
  t.deepEqual(assembled(PRINTED), [
    { name: 'shift_16', registers: 56, spilled: 0 },
    { name: 'advance', registers: 12, spilled: 16 },
  ])
  t.deepEqual(assembled(''), [])
  t.throws(() => assembled("Compiling entry function 'shift_16' for 'sm_90'\n"), {
    message: /unexpected output of the assembler: shift_16/,
  })
})

test('a line for each file names what spills', t => {
  const kernels = assembled(PRINTED)
  t.is(
    table([
      { file: 'shift.cu', gpu: 'sm_80', kernels: kernels.slice(0, 1) },
      { file: 'shift.cu', gpu: 'sm_90', kernels },
    ]),
    'shift.cu  sm_80  1 kernels  56 registers at most  spilled: none\nshift.cu  sm_90  2 kernels  56 registers at most  spilled: advance 16 bytes',
  )
})

test('what the build compiles without fused multiply-adds is compiled so here', t => {
  t.deepEqual([...exactFiles()].sort(), ['holes.cu', 'quantise.cu'])
  t.throws(() => exactFiles('const OTHER: [&str; 1] = ["boxes"];'), {
    message: 'build.rs does not say which kernels are exact',
  })
})
