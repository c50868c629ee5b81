// Numbers and tables, as the pages show them.
import type { Spread } from './spread.js'

/** Three digits, or all of a whole number, in groups of three. */
export function digits(value: number): string {
  if (value >= 100) return Math.round(value).toString().replaceAll(/\B(?=(\d{3})+$)/g, ',')
  return String(Number(value.toPrecision(3)))
}

export const spreadText = ({ median, p10, p90 }: Spread): string => `${digits(median)} (${digits(p10)} to ${digits(p90)})`

export const rowOf = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`

export function tableOf(head: readonly string[], rows: readonly (readonly string[])[]): string {
  return [rowOf(head), rowOf(head.map(() => '---')), ...rows.map(rowOf)].join('\n')
}
