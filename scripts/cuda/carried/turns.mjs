// Runs programs that measure the same workloads in turns, and merges their results into a report in bench/cuda's form, with the lanes
// of all programs and the rounds of all turns.
import { parseArgs } from 'node:util'

const DEFAULTS = { rounds: '11', turns: '3', python: 'python3' }

export function asked(args) {
  const options = Object.fromEntries(
    Object.entries(DEFAULTS).map(([name, value]) => [name, { type: 'string', default: value }]),
  )
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true })
  const count = name => {
    const number = Number(values[name])
    if (!Number.isInteger(number) || number < 1)
      throw new RangeError(`--${name} ${values[name]}: expected a whole number above 0`)
    return number
  }
  return {
    ...values,
    rounds: count('rounds'),
    turns: count('turns'),
    starts: positionals.length > 0 ? positionals : [''],
  }
}

/** Runs the programs in turn, and returns their reports by program. A program that measures nothing is not run again. */
export async function turnsOf(programs, turns) {
  const reports = Object.fromEntries(Object.keys(programs).map(name => [name, []]))
  for (let turn = 0; turn < turns; turn++) {
    for (const [name, run] of Object.entries(programs)) {
      const before = reports[name].at(-1)
      if (before !== undefined && before.workloads.length === 0) continue
      reports[name].push(await run())
    }
  }
  return reports
}

/** Returns all lanes of a workload with the rounds of all turns, in the order of their first appearance. */
function mergedWorkloads(reports) {
  const workloads = new Map()
  for (const { id, title, lanes } of reports.flatMap(report => report.workloads)) {
    const known = workloads.get(id) ?? { id, title, lanes: new Map() }
    workloads.set(id, known)
    for (const lane of lanes) {
      const earlier = known.lanes.get(lane.name)
      const more =
        earlier === undefined
          ? lane
          : {
              ...lane,
              nanoseconds: [...earlier.nanoseconds, ...lane.nanoseconds],
              host: [...earlier.host, ...lane.host],
            }
      known.lanes.set(lane.name, more)
    }
  }
  return [...workloads.values()].map(workload => ({ ...workload, lanes: [...workload.lanes.values()] }))
}

const once = list => [...new Map(list.map(of => [JSON.stringify(of), of])).values()]

export function merged(reports, { turns, rounds }) {
  const all = Object.values(reports).flat()
  return {
    turns,
    rounds,
    machines: once(all.map(({ machine }) => machine).filter(machine => machine !== null)),
    workloads: mergedWorkloads(all),
    skipped: once(all.flatMap(({ skipped }) => skipped)),
    failed: once(all.flatMap(({ failed }) => failed)),
  }
}
