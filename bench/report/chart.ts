// Draws bench/results.svg and bench/pool.svg: one panel per workload, a log axis, a mark per lane with its spread.
//
// The marks differ in shape as well as in colour, so the chart is readable without colours.
import type { Lane, Role } from './report.js'
import { digits } from './table.js'

const PANEL_WIDTH = 560
const GAP = 14
const NAME_WIDTH = 262
/** The width of the plot; names are to the left of it, and numbers to the right. */
const PLOT_WIDTH = PANEL_WIDTH - NAME_WIDTH - 66 - 20
const LANE_HEIGHT = 18
const HEAD_HEIGHT = 56
const AXIS_HEIGHT = 26
const LEGEND_HEIGHT = 34

/** Colours follow the reader's theme. */
const STYLE = `text{font:12px system-ui,sans-serif;fill:#1f2328}
.title{font-weight:600}.small{font-size:11px;fill:#59636e}
.panel{fill:none;stroke:#d1d9e0}.grid{stroke:#d1d9e0;stroke-dasharray:2 3}
.ours{fill:#0969da;stroke:#0969da}.peer{fill:#bc4c00;stroke:#bc4c00}.baseline{fill:#8250df;stroke:#8250df}
.limit{fill:none;stroke:#59636e;stroke-width:1.5}.spread{stroke-width:1.5;opacity:.55}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.panel,.grid{stroke:#3d444d}
.ours{fill:#58a6ff;stroke:#58a6ff}.peer{fill:#f0883e;stroke:#f0883e}.baseline{fill:#bc8cff;stroke:#bc8cff}.limit{stroke:#9198a1}}`

const ROLES: readonly (readonly [Role, string])[] = [
  ['ours', 'kvtide'],
  ['peer', 'other caches'],
  ['baseline', 'by hand'],
  ['limit', 'limit: bare memory'],
]

export interface Panel {
  readonly title: string
  readonly subtitle: string
  readonly lanes: readonly Lane[]
}

const at = (value: number): string => String(Number(value.toFixed(1)))

const escape = (words: string): string => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

/** Draws words at a place: they start there, or end there, or are centred there. */
function text(x: number, y: number, words: string, kind?: 'title' | 'small', anchor?: 'middle' | 'end'): string {
  return `<text x="${at(x)}" y="${at(y)}"${anchor === undefined ? '' : ` text-anchor="${anchor}"`}${kind === undefined ? '' : ` class="${kind}"`}>${escape(words)}</text>`
}

interface Axis {
  readonly decades: readonly number[]
  /** Returns the place of a value, 0 to 1. */
  place(value: number): number
}

export function axisOf(values: readonly number[]): Axis {
  const low = Math.floor(Math.log10(Math.min(...values)))
  // At least one decade, even if every value is the same power of ten.
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))))
  const decades = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index))
  return { decades, place: value => (Math.log10(value) - low) / (high - low) }
}

const UNITS = [
  ['ns', 1],
  ['µs', 1e3],
  ['ms', 1e6],
  ['s', 1e9],
] as const

/** Formats nanoseconds in the largest unit that gives a number of at least 1. */
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
  const x = (value: number): number => NAME_WIDTH + axis.place(value) * PLOT_WIDTH
  const spread = `<path d="M${at(x(p10))} ${y}H${at(x(p90))}" class="${role} spread"/>`
  return [
    text(NAME_WIDTH - 10, y + 4, name, undefined, 'end'),
    spread,
    mark(role, x(median), y),
    text(PANEL_WIDTH - 10, y + 4, time(median), 'small', 'end'),
  ].join('')
}

const heightOf = ({ lanes }: Panel): number => HEAD_HEIGHT + lanes.length * LANE_HEIGHT + AXIS_HEIGHT

function drawn(panel: Panel, left: number, top: number): string {
  const { title, subtitle, lanes } = panel
  const axis = axisOf(lanes.flatMap(({ median, p10, p90 }) => [median, p10, p90]))
  const bottom = HEAD_HEIGHT + lanes.length * LANE_HEIGHT
  // Only some decades have room for their label.
  const step = Math.ceil((axis.decades.length * 44) / PLOT_WIDTH)
  const grid = axis.decades.map((decade, index) => {
    const x = NAME_WIDTH + axis.place(decade) * PLOT_WIDTH
    return `<path d="M${at(x)} ${HEAD_HEIGHT - 8}V${bottom}" class="grid"/>${index % step === 0 ? text(x, bottom + 14, time(decade), 'small', 'middle') : ''}`
  })
  const frame = `<g transform="translate(${left} ${top})"><rect width="${PANEL_WIDTH}" height="${heightOf(panel)}" rx="6" class="panel"/>`
  const marks = lanes.map((each, index) => lane(each, axis, HEAD_HEIGHT + index * LANE_HEIGHT + LANE_HEIGHT / 2 - 4))
  return [frame, text(12, 20, title, 'title'), text(12, 36, subtitle, 'small'), ...grid, ...marks, '</g>'].join('\n')
}

function legend(panels: readonly Panel[]): string {
  const roles = ROLES.filter(([role]) => panels.some(({ lanes }) => lanes.some(each => each.role === role)))
  const entries = roles.map(
    ([role, name], index) => `${mark(role, 20 + index * 130, 16)}${text(32 + index * 130, 20, name)}`,
  )
  return `${entries.join('')}${text(560, 20, 'time per operation, log axis; less is better', 'small')}`
}

export function chart(title: string, panels: readonly Panel[]): string {
  // The next panel goes under the shorter column.
  const ends = [LEGEND_HEIGHT, LEGEND_HEIGHT]
  const placed = panels.map(panel => {
    const column = ends.indexOf(Math.min(...ends))
    const top = ends[column] as number
    ends[column] = top + heightOf(panel) + GAP
    return drawn(panel, column * (PANEL_WIDTH + GAP), top)
  })
  const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 ${2 * PANEL_WIDTH + GAP + 2} ${Math.max(...ends) + 2}" role="img">`
  return [head, `<title>${title}</title>`, `<style>${STYLE}</style>`, legend(panels), ...placed, '</svg>\n'].join('\n')
}
