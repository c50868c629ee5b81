import type { ParseArgsConfig } from 'node:util'

/** The options of a command, as `parseArgs` of node takes them. */
type Options = NonNullable<ParseArgsConfig['options']>

/** What a command was called with. */
export interface Call {
  readonly values: Readonly<Record<string, string | boolean | undefined>>
  readonly files: readonly string[]
}

/** What a command answers: words for people, and the same for programs. */
export interface Answer {
  readonly text: string
  readonly json: unknown
  /** 1 where what was looked at is refused; 0 by default. */
  readonly code?: number
}

/** A command of `kvtide`. A new one is a file, and its line in `cli.ts`. */
export interface Command {
  /** What stands behind its name. */
  readonly usage: string
  /** The whole help. */
  readonly help: string
  /** Beside `--help` and `--json`. */
  readonly options: Options
  /** How many files it takes. */
  readonly files: number
  run(call: Call): Answer | Promise<Answer>
}

/** Rows with columns as wide as their longest cell; the first one to the left, the others to the right. */
export function table(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map(row => (row[column] ?? '').length)))
  const cell = (words: string, column: number): string => (column === 0 ? words.padEnd(widths[column] as number) : words.padStart(widths[column] as number))
  return rows.map(row => row.map(cell).join('  ').trimEnd()).join('\n')
}
