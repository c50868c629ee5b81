// What charts are drawn with: texts, frames of panels, log axes, and the file around them.
import { digits } from './table.js'

export const PANEL_WIDTH = 560
export const GAP = 14

/** Colours follow the reader's theme; a panel's own come between. */
export const styleOf = (light: string, dark: string): string => `text{font:12px system-ui,sans-serif;fill:#1f2328}
.title{font-weight:600}.small{font-size:11px;fill:#59636e}
.panel{fill:none;stroke:#d1d9e0}.grid{stroke:#d1d9e0;stroke-dasharray:2 3}${light}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.panel,.grid{stroke:#3d444d}${dark}}`

/** A place, to a tenth. */
export const at = (value: number): string => String(Number(value.toFixed(1)))

/** Text as XML has it. */
export const escape = (words: string): string => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

/** Words at a place: from there on, unless they are to end there or to have their middle there. */
export function text(x: number, y: number, words: string, kind?: 'title' | 'small', anchor?: 'middle' | 'end'): string {
  return `<text x="${at(x)}" y="${at(y)}"${anchor === undefined ? '' : ` text-anchor="${anchor}"`}${kind === undefined ? '' : ` class="${kind}"`}>${escape(words)}</text>`
}

/** A panel with its upper left corner at a point. */
export function panelAt(left: number, top: number, height: number, title: string, subtitle: string, parts: readonly string[]): string {
  const frame = `<g transform="translate(${left} ${top})"><rect width="${PANEL_WIDTH}" height="${height}" rx="6" class="panel"/>`
  return [frame, text(12, 20, title, 'title'), text(12, 36, subtitle, 'small'), ...parts, '</g>'].join('\n')
}

/** The text of a file with two columns of panels. */
export function svgOf(height: number, title: string, style: string, parts: readonly string[]): string {
  const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 ${2 * PANEL_WIDTH + GAP + 2} ${height + 2}" role="img">`
  return [head, `<title>${title}</title>`, `<style>${style}</style>`, ...parts, '</svg>\n'].join('\n')
}

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
