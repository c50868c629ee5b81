// A panel of lines with their names at their ends:
//
//   10 |        .--^ evict        a mark per place with its spread; marks of one place stand side by side
//    1 |   o---o      match
//      +----------
import type { Spread } from './spread.js'
import { at, escape, PANEL_WIDTH, panelAt, styleOf, text } from './svg.js'

export const PANEL_HEIGHT = 362
const LEFT = 52
const RIGHT = 178
const HEAD = 54
const PLOT_HEIGHT = 262
const PLOT_WIDTH: number = PANEL_WIDTH - LEFT - RIGHT
/** Between a plot's edge and the middle of its first and last marks. */
const INSET = 24
/** Between marks of one place. */
const STEP = 7
const LABEL_HEIGHT = 16

export const STYLE: string = styleOf(
  `.lead{stroke:#818b98;stroke-width:.75}
.goal{stroke:#cf222e;stroke-dasharray:7 3}.goals{font-size:11px;fill:#cf222e}
.call0{fill:#0969da;stroke:#0969da}.call1{fill:#bc4c00;stroke:#bc4c00}.call2{fill:#8250df;stroke:#8250df}.call3{fill:#1a7f37;stroke:#1a7f37}
.read{fill:none;stroke:#59636e;stroke-width:1.5}
.line{fill:none;stroke-width:1.5}.read.line{stroke-dasharray:4 3}.spread{stroke-width:4;opacity:.35}`,
  `.lead{stroke:#656c76}
.goal{stroke:#ff7b72}.goals{fill:#ff7b72}
.call0{fill:#58a6ff;stroke:#58a6ff}.call1{fill:#f0883e;stroke:#f0883e}.call2{fill:#bc8cff;stroke:#bc8cff}.call3{fill:#56d364;stroke:#56d364}
.read{stroke:#9198a1}.line,.read{fill:none}`,
)

/** What lines look like. */
export type Kind = 'call0' | 'call1' | 'call2' | 'call3' | 'read'

/** A mark, from its middle. */
const SHAPES: Readonly<Record<Kind, string>> = {
  call0: 'm-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0',
  call1: 'm-4 -4h8v8h-8z',
  call2: 'm0 -5l5 9h-10z',
  call3: 'm0 5l5-9h-10z',
  read: 'm0 -5l5 5l-5 5l-5-5z',
}

export interface Line {
  readonly name: string
  readonly kind: Kind
  /** From the first place to the last. */
  readonly points: readonly Spread[]
  /** What its last point is, in words. */
  readonly end: string
}

export interface Panel {
  readonly title: string
  readonly subtitle: string
  /** What stands below each place. */
  readonly places: readonly string[]
  readonly below: string
  /** Heights with their names. */
  readonly ticks: readonly (readonly [number, string])[]
  /** How high a value lies, 0 to 1. */
  readonly height: (value: number) => number
  readonly lines: readonly Line[]
  readonly goal?: { readonly value: number; readonly says: string }
}

/** Heights as near to those wanted as they can be without being closer than `least`, between `low` and `high`. */
export function apart(wanted: readonly number[], least: number, low: number, high: number): number[] {
  const order = wanted.map((_, index) => index).sort((a, b) => (wanted[a] as number) - (wanted[b] as number))
  const placed = [...wanted]
  let lowest = low
  for (const index of order) {
    placed[index] = Math.max(placed[index] as number, lowest)
    lowest = (placed[index] as number) + least
  }
  let highest = high
  for (const index of order.toReversed()) {
    placed[index] = Math.min(placed[index] as number, highest)
    highest = (placed[index] as number) - least
  }
  return placed
}

/** Where things lie. */
interface Plot {
  readonly x: (place: number) => number
  readonly y: (value: number) => number
}

/** How far a line's marks stand beside their places. */
const beside = (index: number, lines: readonly Line[]): number => (index - (lines.length - 1) / 2) * STEP

function drawn({ kind, points }: Line, aside: number, { x, y }: Plot): string {
  const middles = points.map(({ median }, index) => `${at(x(index) + aside)} ${at(y(median))}`)
  const spreads = points.map(({ p10, p90 }, index) => `<path d="M${at(x(index) + aside)} ${at(y(p10))}V${at(y(p90))}" class="${kind} spread"/>`)
  const marks = middles.map(middle => `<path d="M${middle}${SHAPES[kind]}" class="${kind} mark"/>`)
  return [...spreads, `<path d="M${middles.join('L')}" class="${kind} line"/>`, ...marks].join('')
}

/** The names of lines at their ends, each with a lead from its last mark. */
function namesOf(lines: readonly Line[], { x, y }: Plot): string[] {
  const ends = lines.map(({ points }) => y(points.at(-1)?.median ?? Number.NaN))
  const placed = apart(ends, LABEL_HEIGHT, HEAD + 4, HEAD + PLOT_HEIGHT - 4)
  const to = LEFT + PLOT_WIDTH + 12
  return lines.map(({ name, points, end }, index) => {
    const from = x(points.length - 1) + beside(index, lines) + 6
    const height = placed[index] as number
    return [
      `<path d="M${at(from)} ${at(ends[index] as number)}H${at(Math.max(from, to - 18))}L${to - 3} ${at(height)}" fill="none" class="lead"/>`,
      `<text x="${to}" y="${at(height + 4)}" class="name">${escape(name)}<tspan class="small"> ${escape(end)}</tspan></text>`,
    ].join('')
  })
}

function gridOf({ ticks, places, below, goal }: Panel, { x, y }: Plot): string[] {
  const [right, bottom] = [LEFT + PLOT_WIDTH, HEAD + PLOT_HEIGHT]
  const heights = ticks.map(([value, says]) => `<path d="M${LEFT} ${at(y(value))}H${right}" class="grid"/>${text(LEFT - 8, y(value) + 4, says, 'small', 'end')}`)
  const columns = places.map((says, index) => `<path d="M${at(x(index))} ${HEAD}V${bottom}" class="grid"/>${text(x(index), bottom + 16, says, 'small', 'middle')}`)
  const goals = goal === undefined ? [] : [
    `<path d="M${LEFT} ${at(y(goal.value))}H${right}" class="goal"/>`,
    `<text x="${LEFT + 6}" y="${at(y(goal.value) - 6)}" class="goals">${escape(goal.says)}</text>`,
  ]
  return [...heights, ...columns, text(LEFT + PLOT_WIDTH / 2, bottom + 34, below, 'small', 'middle'), ...goals]
}

/** Draws one with its upper left corner at a point. */
export function drawnAt(panel: Panel, left: number, top: number): string {
  const { title, subtitle, places, lines, height } = panel
  const plot: Plot = {
    x: place => LEFT + INSET + (place / (places.length - 1)) * (PLOT_WIDTH - 2 * INSET),
    y: value => HEAD + (1 - height(value)) * PLOT_HEIGHT,
  }
  const parts = [...gridOf(panel, plot), ...lines.map((line, index) => drawn(line, beside(index, lines), plot)), ...namesOf(lines, plot)]
  return panelAt(left, top, PANEL_HEIGHT, title, subtitle, parts)
}
