// bench/results.svg: one panel per workload, a log axis, a mark per lane with its spread.
//
// Colours follow the reader's theme; the marks differ in shape as well, so that nothing is told by colour alone.
import type { Lane, Role, Workload } from './report.js'
import { digits } from './table.js'

const COLUMNS = 2
const PANEL_WIDTH = 560
const NAME_WIDTH = 262
const VALUE_WIDTH = 66
const LANE_HEIGHT = 18
const HEAD_HEIGHT = 56
const AXIS_HEIGHT = 26
const GAP = 14
const LEGEND_HEIGHT = 34

const STYLE = `text{font:12px system-ui,sans-serif;fill:#1f2328}
.title{font-weight:600}.small{font-size:11px;fill:#59636e}
.panel{fill:none;stroke:#d1d9e0}.grid{stroke:#d1d9e0;stroke-dasharray:2 3}
.ours{fill:#0969da;stroke:#0969da}.peer{fill:#bc4c00;stroke:#bc4c00}.baseline{fill:#8250df;stroke:#8250df}
.limit{fill:none;stroke:#59636e;stroke-width:1.5}.spread{stroke-width:1.5;opacity:.55}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.panel,.grid{stroke:#3d444d}
.ours{fill:#58a6ff;stroke:#58a6ff}.peer{fill:#f0883e;stroke:#f0883e}.baseline{fill:#bc8cff;stroke:#bc8cff}.limit{stroke:#9198a1}}`

/** Text as XML has it. */
export const escape = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

/** A place, to a tenth. */
export const at = (value: number): string => String(Number(value.toFixed(1)))

/** A log axis over whole decades. */
export interface Axis {
  readonly decades: readonly number[]
  /** Where a value lies, 0 to 1. */
  place(value: number): number
}

export function axisOf(values: readonly number[]): Axis {
  const low = Math.floor(Math.log10(Math.min(...values)))
  // A decade at least, also where every value is the same power of ten.
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))))
  const decades = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index))
  return { decades, place: value => (Math.log10(value) - low) / (high - low) }
}

const UNITS = [['ns', 1], ['µs', 1e3], ['ms', 1e6], ['s', 1e9]] as const

/** Nanoseconds in the largest unit of which there is one. */
export function time(nanoseconds: number): string {
  const [unit, size] = UNITS.findLast(([, unitSize]) => nanoseconds >= unitSize) ?? UNITS[0]
  return `${digits(nanoseconds / size)} ${unit}`
}

function mark(role: Role, x: number, y: number): string {
  const shapes: Record<Role, string> = {
    ours: `<circle cx="${at(x)}" cy="${at(y)}" r="5"`,
    peer: `<rect x="${at(x - 4)}" y="${at(y - 4)}" width="8" height="8"`,
    baseline: `<path d="M${at(x)} ${at(y - 5)}l5 9h-10z"`,
    limit: `<path d="M${at(x)} ${at(y - 5)}l5 5l-5 5l-5-5z"`,
  }
  return `${shapes[role]} class="${role}"/>`
}

function lane({ name, role, median, p10, p90 }: Lane, axis: Axis, y: number): string {
  const width = PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH - 20
  const x = (value: number): number => NAME_WIDTH + axis.place(value) * width
  return [
    `<text x="${NAME_WIDTH - 10}" y="${y + 4}" text-anchor="end">${escape(name)}</text>`,
    `<path d="M${at(x(p10))} ${y}H${at(x(p90))}" class="${role} spread"/>`,
    mark(role, x(median), y),
    `<text x="${PANEL_WIDTH - 10}" y="${y + 4}" text-anchor="end" class="small">${time(median)}</text>`,
  ].join('')
}

const heightOf = ({ lanes }: Workload): number => HEAD_HEIGHT + lanes.length * LANE_HEIGHT + AXIS_HEIGHT

function panel(workload: Workload, left: number, top: number): string {
  const { title, operation, memory, lanes } = workload
  const axis = axisOf(lanes.flatMap(({ median, p10, p90 }) => [median, p10, p90]))
  const width = PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH - 20
  const bottom = HEAD_HEIGHT + lanes.length * LANE_HEIGHT
  // Not every decade has room for its name.
  const step = Math.ceil((axis.decades.length * 44) / width)
  const grid = axis.decades.map((decade, index) => {
    const x = at(NAME_WIDTH + axis.place(decade) * width)
    const label = index % step === 0 ? `<text x="${x}" y="${bottom + 14}" text-anchor="middle" class="small">${time(decade)}</text>` : ''
    return `<path d="M${x} ${HEAD_HEIGHT - 8}V${bottom}" class="grid"/>${label}`
  })
  return [
    `<g transform="translate(${left} ${top})"><rect width="${PANEL_WIDTH}" height="${heightOf(workload)}" rx="6" class="panel"/>`,
    `<text x="12" y="20" class="title">${escape(title)}</text>`,
    `<text x="12" y="36" class="small">${escape(`per ${operation}, ${memory} memory`)}</text>`,
    ...grid,
    ...lanes.map((each, index) => lane(each, axis, HEAD_HEIGHT + index * LANE_HEIGHT + LANE_HEIGHT / 2 - 4)),
    '</g>',
  ].join('\n')
}

function legend(): string {
  const roles: readonly [Role, string][] = [['ours', 'kvtide'], ['peer', 'other caches'], ['baseline', 'by hand'], ['limit', 'limit: bare memory']]
  const entries = roles.map(([role, name], index) => `${mark(role, 20 + index * 130, 16)}<text x="${32 + index * 130}" y="20">${name}</text>`)
  return `${entries.join('')}<text x="560" y="20" class="small">time per operation, log axis; less is better</text>`
}

/** The chart of these workloads, as the text of an SVG file. */
export function chart(workloads: readonly Workload[]): string {
  // The next panel goes under the shorter column.
  const ends = Array.from({ length: COLUMNS }, () => LEGEND_HEIGHT)
  const panels = workloads.map(workload => {
    const column = ends.indexOf(Math.min(...ends))
    const top = ends[column] as number
    ends[column] = top + heightOf(workload) + GAP
    return panel(workload, column * (PANEL_WIDTH + GAP), top)
  })
  const [width, height] = [COLUMNS * (PANEL_WIDTH + GAP) - GAP, Math.max(...ends)]
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 ${width + 2} ${height + 2}" role="img">`,
    '<title>What each workload costs in kvtide, in other caches, by hand, and in bare memory</title>',
    `<style>${STYLE}</style>`,
    legend(),
    ...panels,
    '</svg>\n',
  ].join('\n')
}
