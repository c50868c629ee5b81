// Planted faults that depend on the order of steps: states of layers, and pages that round.
import { ava } from './checks.mjs'

const STATE = 'lib/onnx/sequence-state.ts'
const SCHEDULER = 'lib/onnx/scheduler.ts'
const CARRIED = 'lib/onnx/carried.ts'

const toy = ava('__test__/onnx/hybrid-schedules.test.ts', 'a toy with states, in random worlds')
const graph = ava('__test__/onnx/hybrid-schedules.test.ts', 'graph 0 on plain, in random worlds')
const lowBit = title =>
  ava('__test__/onnx/low-bit-schedules.test.ts', `${title}: random schedules give what each gets alone`)

export const schedules = [
  {
    name: 'state-draft',
    fault: 'tokens of a draft that was rolled back for want of a state count as computed',
    file: SCHEDULER,
    from: 'task.state.computed += isKept ? accepted : -1',
    to: 'task.state.computed += accepted',
    check: toy,
  },
  {
    name: 'state-truncated',
    fault: 'tokens behind the last state of a sequence that is cut count as computed',
    file: STATE,
    from: 'if (length < this.computed) this.computed = cutToState(this.sequence, length)',
    to: 'if (length < this.computed) this.computed = Math.max(cutToState(this.sequence, length), length)',
    check: toy,
  },
  {
    name: 'state-presents',
    fault: 'presents that are cut keep the state after the tokens that they lose',
    file: CARRIED,
    from: 'ports.some(isSlid) || !this.#states.isEmpty) return undefined',
    to: 'ports.some(isSlid)) return undefined',
    check: graph,
  },
  {
    name: 'low-bit-draft',
    fault: 'behind a draft that was rejected, rounded rows are read in place of floats',
    file: CARRIED,
    from: '    if (length === 0 || ports.some(isSlid)',
    to: '    if (length < carried.length || ports.some(isSlid)',
    check: lowBit('plain, q4'),
  },
]
