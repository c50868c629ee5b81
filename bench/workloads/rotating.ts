// Measures a one-token append with a small and with a large window, through the TypeScript API.
import { RotatingKvCache } from 'kvtide'

import { workloadOf, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { BareRows, tokens } from './rows.js'

const step = tokens(1)

const name = (window: number): string => `kvtide, window ${window}`

function ours(window: number): Contestant {
  const cache = new RotatingKvCache({ maxSeqLen: window, capacitySeqLen: window })
  const full = tokens(window)
  cache.append(full, full)
  // A round goes once through all free slots, so each round has exactly one compaction.
  const operations = Math.max(window / 4, 64) + 1
  return lane('ours', name(window), operations, () => {
    for (let index = 0; index < operations; index++) cache.append(step, step)
  })
}

/** A program without a cache: moves the window by one row at each step. */
function copying(window: number): Contestant {
  const rows = new BareRows(window)
  return lane('baseline', `copyWithin, window ${window}`, 2, () => {
    for (let index = 0; index < 2; index++) {
      rows.shift()
      rows.write(window - 1, step.data)
    }
  })
}

/** Writes the rows of one token and nothing else, so the cost of keeping order is not included. */
function bare(window: number): Contestant {
  const rows = new BareRows(window)
  return lane('limit', `bare rows, unordered, window ${window}`, window, () => {
    for (let slot = 0; slot < window; slot++) rows.write(slot, step.data)
  })
}

export async function rotating(windows: readonly [number, number, number], rounds: number): Promise<Workload> {
  const [small, middle, large] = windows
  const measured = await measure([...windows.map(ours), copying(middle), bare(middle)], rounds)
  const copied = `copyWithin, window ${middle}`
  const written = `bare rows, unordered, window ${middle}`
  return workloadOf('js-rotating', 'TypeScript: rotating, 1 token, f32', 'token', measured, [
    {
      id: 'js-rotating/large-over-small',
      says: `window ${large} / window ${small}`,
      over: name(large),
      under: name(small),
      toReach: 'less',
    },
    {
      id: 'js-rotating/copying-over-ours',
      says: `copyWithin of the window / kvtide, window ${middle}`,
      over: copied,
      under: name(middle),
      toReach: 'more',
    },
    {
      id: 'js-rotating/ours-over-bare',
      says: `kvtide / bare rows, window ${middle}`,
      over: name(middle),
      under: written,
      toReach: 'less',
    },
  ])
}
