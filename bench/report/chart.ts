// bench/results.svg: one panel per workload, a log axis, a mark per lane with its spread.
//
// The marks differ in shape as well as in colour, so that nothing is told by colour alone.
import type { Lane, Role, Workload } from './report.js'
import { at, axisOf, GAP, PANEL_WIDTH, panelAt, styleOf, svgOf, text, time, type Axis } from './svg.js'

const NAME_WIDTH = 262
/** Where values lie: names come before, and numbers behind. */
const PLOT_WIDTH = PANEL_WIDTH - NAME_WIDTH - 66 - 20
const LANE_HEIGHT = 18
const HEAD_HEIGHT = 56
const AXIS_HEIGHT = 26
const LEGEND_HEIGHT = 34

const STYLE = styleOf(
  `
.ours{fill:#0969da;stroke:#0969da}.peer{fill:#bc4c00;stroke:#bc4c00}.baseline{fill:#8250df;stroke:#8250df}
.limit{fill:none;stroke:#59636e;stroke-width:1.5}.spread{stroke-width:1.5;opacity:.55}`,
  '\n.ours{fill:#58a6ff;stroke:#58a6ff}.peer{fill:#f0883e;stroke:#f0883e}.baseline{fill:#bc8cff;stroke:#bc8cff}.limit{stroke:#9198a1}',
)

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
  return [text(NAME_WIDTH - 10, y + 4, name, undefined, 'end'), spread, mark(role, x(median), y), text(PANEL_WIDTH - 10, y + 4, time(median), 'small', 'end')].join('')
}

const heightOf = ({ lanes }: Workload): number => HEAD_HEIGHT + lanes.length * LANE_HEIGHT + AXIS_HEIGHT

function panel(workload: Workload, left: number, top: number): string {
  const { title, operation, memory, lanes } = workload
  const axis = axisOf(lanes.flatMap(({ median, p10, p90 }) => [median, p10, p90]))
  const bottom = HEAD_HEIGHT + lanes.length * LANE_HEIGHT
  // Not every decade has room for its name.
  const step = Math.ceil((axis.decades.length * 44) / PLOT_WIDTH)
  const grid = axis.decades.map((decade, index) => {
    const x = NAME_WIDTH + axis.place(decade) * PLOT_WIDTH
    return `<path d="M${at(x)} ${HEAD_HEIGHT - 8}V${bottom}" class="grid"/>${index % step === 0 ? text(x, bottom + 14, time(decade), 'small', 'middle') : ''}`
  })
  const drawn = lanes.map((each, index) => lane(each, axis, HEAD_HEIGHT + index * LANE_HEIGHT + LANE_HEIGHT / 2 - 4))
  return panelAt(left, top, heightOf(workload), title, `per ${operation}, ${memory} memory`, [...grid, ...drawn])
}

function legend(): string {
  const roles: readonly [Role, string][] = [['ours', 'kvtide'], ['peer', 'other caches'], ['baseline', 'by hand'], ['limit', 'limit: bare memory']]
  const entries = roles.map(([role, name], index) => `${mark(role, 20 + index * 130, 16)}${text(32 + index * 130, 20, name)}`)
  return `${entries.join('')}${text(560, 20, 'time per operation, log axis; less is better', 'small')}`
}

/** The chart of these workloads, as the text of an SVG file. */
export function chart(workloads: readonly Workload[]): string {
  // The next panel goes under the shorter column.
  const ends = [LEGEND_HEIGHT, LEGEND_HEIGHT]
  const panels = workloads.map(workload => {
    const column = ends.indexOf(Math.min(...ends))
    const top = ends[column] as number
    ends[column] = top + heightOf(workload) + GAP
    return panel(workload, column * (PANEL_WIDTH + GAP), top)
  })
  return svgOf(Math.max(...ends), 'What each workload costs in kvtide, in other caches, by hand, and in bare memory', STYLE, [legend(), ...panels])
}
