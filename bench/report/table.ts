// Formats numbers and tables for the pages.
import type { Spread } from '../../lib/cli/spread.js'

/** Formats a number with three digits, or all digits of a whole number, in groups of three. */
export function digits(value: number): string {
  if (value >= 100)
    return Math.round(value)
      .toString()
      .replaceAll(/\B(?=(\d{3})+$)/g, ',')
  return String(Number(value.toPrecision(3)))
}

export const spreadText = ({ median, p10, p90 }: Spread): string =>
  `${digits(median)} (${digits(p10)} to ${digits(p90)})`

export const rowOf = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`

export function tableOf(head: readonly string[], rows: readonly (readonly string[])[]): string {
  return [rowOf(head), rowOf(head.map(() => '---')), ...rows.map(rowOf)].join('\n')
}
