// The stages of `npm run soak`: each does its work in pieces of minutes, so that a run can stop and go on.
import { libraries } from '../crates.mjs'
import { targets } from '../fuzz/targets.mjs'
import { onTarget } from '../steps.mjs'

const numberOf = (pattern, output) => Number(pattern.exec(output)?.[1] ?? 0)
const one = () => 1

/**
 * A stage: `goal` in its own unit, the command of a piece, and the amount that a piece has done, by its output and the seconds that it took.
 *
 * @type {readonly { name: string, unit: string, goal: number, command: readonly string[], env?: object, done: (output: string, seconds: number) => number }[]}
 */
export const stages = [
  {
    name: 'properties',
    unit: 'sequences of each property',
    goal: Number(process.env.KVTIDE_CASES ?? 1_000_000),
    command: ['cargo', 'test', '--release', ...onTarget(), ...libraries],
    env: { KVTIDE_CASES: '20000', KVTIDE_CALLS: '200' },
    done: () => 20_000,
  },
  {
    name: 'orders',
    unit: 'loom models with three preemptions',
    goal: 1,
    command: ['node', 'scripts/concurrency.mjs', '--preemptions', '3', '--minutes', '10', '--schedules', '1000'],
    done: one,
  },
  {
    name: 'schedules',
    unit: 'schedules of each shuttle model',
    goal: 1_000_000,
    command: ['node', 'scripts/concurrency.mjs', '--preemptions', '1', '--schedules', '200000'],
    done: () => 200_000,
  },
  ...Object.keys(targets).map(target => ({
    name: `fuzz-${target}`,
    unit: 'inputs',
    goal: 100_000_000,
    command: ['node', 'scripts/fuzz.mjs', target, '--seconds', '300'],
    done: output => numberOf(/: (\d+) runs, no crash/, output),
  })),
  {
    name: 'workers',
    unit: 'rounds of four workers',
    goal: 400,
    command: ['ava', '__test__/integration/terminated-workers.test.ts'],
    env: { KVTIDE_WORKER_ROUNDS: '40' },
    done: () => 40,
  },
  {
    name: 'kills',
    unit: 'killed processes',
    goal: 20_000,
    command: [
      'cargo',
      'test',
      '--release',
      ...onTarget(),
      ...libraries,
      '--test',
      'tiers',
      '--test',
      'files',
      'killed',
    ],
    env: { KVTIDE_KILLS: '1000' },
    done: () => 2000,
  },
  {
    name: 'fail-points',
    unit: 'runs of pairs of calls that fail, all of them',
    goal: 1,
    command: ['cargo', 'test', '--release', ...onTarget(), ...libraries, '--lib', '--test', 'files', 'fail'],
    env: { KVTIDE_CASES: '10000' },
    done: one,
  },
  {
    name: 'devices',
    unit: 'sequences of each property over emulated kernels',
    goal: 5000,
    command: ['node', 'scripts/emulated.mjs'],
    env: { KVTIDE_CASES: '500' },
    done: () => 500,
  },
  {
    name: 'inputs',
    unit: 'HTTP bodies, tokenizers, templates and sequences of each property in JavaScript',
    goal: 1_000_000,
    command: [
      'ava',
      '--timeout=1h',
      '__test__/text/mutated-files.test.ts',
      '__test__/serve/{http,line,mutated-bodies}.test.ts',
    ],
    env: { KVTIDE_CASES_JS: '20000' },
    done: () => 20_000,
  },
  {
    name: 'models',
    unit: 'schedules of models',
    goal: 100_000,
    command: [
      'ava',
      '--timeout=1h',
      '__test__/onnx/*schedules.test.ts',
      '__test__/onnx/{disposed-in-step,in-step,in-transaction,usage}.test.ts',
    ],
    env: { KVTIDE_SCHEDULES: '5000', KVTIDE_LOW_BIT_SCHEDULES: '20' },
    done: () => 5000,
  },
  {
    name: 'downloads',
    unit: 'schedules of processes that download a model',
    goal: 1000,
    command: ['ava', '--timeout=1h', '__test__/text/hub/processes.test.ts'],
    env: { KVTIDE_HUB_SCHEDULES: '100' },
    done: () => 100,
  },
  {
    name: 'flapping',
    unit: 'seconds in which Redis or an object store goes away and comes back',
    goal: 1800,
    command: [
      'ava',
      '--timeout=1h',
      '__test__/store/faults.test.ts',
      '--match',
      '*started before each*',
      '--match',
      '*again and again',
    ],
    env: { KVTIDE_PROMPTS: '30', KVTIDE_ROUNDS: '200' },
    done: (_, seconds) => seconds,
  },
  {
    name: 'races',
    unit: 'programs of background work',
    goal: 5000,
    command: ['ava', '__test__/integration/races.test.ts', '__test__/integration/ended.test.ts'],
    env: { KVTIDE_RACES: '500', KVTIDE_ENDED: '20' },
    done: () => 500,
  },
  {
    name: 'kinds',
    unit: 'cycles of every kind of object',
    goal: 100_000,
    command: ['ava', '--timeout=2h', '__test__/integration/cycles.test.ts'],
    env: { KVTIDE_CYCLES: '100000' },
    done: () => 100_000,
  },
  {
    name: 'cycles',
    unit: 'caches',
    goal: 1_000_000,
    command: ['node', '--expose-gc', 'scripts/soak/cycles.mjs'],
    env: { KVTIDE_CYCLES: '1000000' },
    done: output => numberOf(/disposed of: (\d+) cycles/, output),
  },
  {
    name: 'chat',
    unit: 'simulated hours',
    goal: 24,
    command: ['node', '--expose-gc', 'scripts/soak/chat.mjs'],
    done: output => numberOf(/^(\d+) hours: /m, output),
  },
  {
    name: 'memory',
    unit: 'runs of the tests under AddressSanitizer',
    goal: 1,
    command: ['node', 'scripts/asan.mjs'],
    done: one,
  },
  {
    name: 'mutants',
    unit: 'runs of all planted faults',
    goal: 1,
    command: ['node', 'scripts/mutants/main.mjs'],
    done: one,
  },
]
