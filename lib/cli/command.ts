// The interface of a command, and the table that commands print.
import type { ParseArgsConfig } from 'node:util'

/** The options of a command, as `parseArgs` of node takes them. */
type Options = NonNullable<ParseArgsConfig['options']>

/** The arguments of a call. */
export interface Call {
  readonly values: Readonly<Record<string, string | boolean | undefined>>
  readonly files: readonly string[]
}

/** The result of a command, as text for people and as JSON for programs. */
export interface Answer {
  readonly text: string
  readonly json: unknown
  /** 1 if the inspected file is refused; 0 by default. */
  readonly code?: number
}

/** A command of `kvtide`. To add one, write a file and list it in `cli.ts`. */
export interface Command {
  /** The arguments, as the usage line shows them. */
  readonly usage: string
  /** The whole help text. */
  readonly help: string
  /** The options besides `--help` and `--json`. */
  readonly options: Options
  /** The number of files that it takes. */
  readonly files: number
  /** True if the files may be left out. */
  readonly isOptional?: boolean
  run(call: Call): Answer | Promise<Answer>
}

/** A table whose columns are as wide as their longest cell. The first column is aligned to the left, the others to the right. */
export function table(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map(row => (row[column] ?? '').length)))
  const cell = (words: string, column: number): string =>
    column === 0 ? words.padEnd(widths[column] as number) : words.padStart(widths[column] as number)
  return rows.map(row => row.map(cell).join('  ').trimEnd()).join('\n')
}
