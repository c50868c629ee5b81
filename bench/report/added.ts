// Puts workloads that were measured alone into bench/RESULTS.md: each replaces its section and its rows of targets, or is added at the end. The rest
// of the page stays unchanged.
//
// The chart of the page is drawn from its sections, which contain everything that it shows.
import type { Panel } from './chart.js'
import { targetRows } from './markdown.js'
import { ROLES, sectionOf, titleOf, type Lane, type Report, type Role, type Workload } from './report.js'
import { rowOf } from './table.js'

const [TARGETS, WORKLOADS] = ['## Targets', '## Workloads']

/** Returns a part of the page, from its heading to the next heading of the same level. */
function partOf(page: string, heading: string): string {
  const start = page.indexOf(`${heading}\n`)
  if (start === -1) throw new RangeError(`the page has no ${heading}`)
  const end = page.indexOf('\n## ', start)
  return page.slice(start, end === -1 ? undefined : end + 1)
}

/** Replaces the lines for which `isLike` is true with `others`, or adds these at the end. */
function replaced(lines: readonly string[], isLike: (line: string) => boolean, others: readonly string[]): string[] {
  const at = lines.findIndex(isLike)
  const kept = lines.filter(line => !isLike(line))
  return kept.toSpliced(at === -1 ? kept.length : at, 0, ...others)
}

/** A section that says that it was measured separately, because the machine's load may have been different. */
function sectionAlone(workload: Workload, load: string): string {
  const rounds = `${workload.rounds} rounds`
  return sectionOf(workload).replace(
    `\n${rounds}.\n`,
    `\n${rounds}, measured by itself and later than others; load before the run: ${load}.\n`,
  )
}

function withWorkload(page: string, workload: Workload, load: string): string {
  const title = titleOf(workload)
  const [targets, workloads] = [partOf(page, TARGETS), partOf(page, WORKLOADS)]
  const rows = replaced(
    targets.trimEnd().split('\n'),
    line => line.startsWith(`| ${title} |`),
    targetRows(workload).map(rowOf),
  )
  const [head = '', ...sections] = workloads.trimEnd().split(/\n\n(?=### )/)
  const parts = replaced(sections, section => section.startsWith(`### ${title}\n`), [sectionAlone(workload, load)])
  return page
    .replace(targets, () => `${rows.join('\n')}\n\n`)
    .replace(workloads, () => `${[head, ...parts].join('\n\n')}\n\n`)
}

/** Returns the page with the workloads of a report. */
export function withReport(page: string, { workloads, machine }: Report): string {
  return workloads.reduce((text, workload) => withWorkload(text, workload, machine?.load ?? 'unknown'), page)
}

const roles = new Map(Object.entries(ROLES).map(([role, name]) => [name as string, role as Role]))

const numbersIn = (text: string): number[] => text.split(' to ').map(number => Number(number.replaceAll(',', '')))

function laneIn(row: string): Lane {
  const [name = '', role = '', median = '', spread = ''] = row.slice(2, -2).split(' | ')
  const [p10 = Number.NaN, p90 = Number.NaN] = numbersIn(spread)
  return { name, role: roles.get(role) ?? 'peer', median: numbersIn(median)[0] ?? Number.NaN, p10, p90 }
}

/** Returns the panels of the page's chart, read from its sections. */
export function panelsIn(page: string): Panel[] {
  return partOf(page, WORKLOADS)
    .split(/\n\n(?=### )/)
    .slice(1)
    .map(section => {
      const [, title = '', memory = ''] = /^### (.*), (\w+) memory\n/.exec(section) ?? []
      const [, operation = ''] = /\| ns per (.*?) \|/.exec(section) ?? []
      const rows = section
        .split('\n')
        .filter(line => line.startsWith('| '))
        .slice(1)
      return {
        title,
        subtitle: `per ${operation}, ${memory} memory`,
        lanes: rows.filter(row => !row.startsWith('| ---')).map(laneIn),
      }
    })
}
