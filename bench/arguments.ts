// The command line of the bench scripts.
import { parseArgs } from 'node:util'

export interface Wanted {
  /** The start of the ids of the workloads that run. */
  readonly only: string
  readonly rounds: number
  /** The file that the report goes to. */
  readonly out: string | undefined
  /** Whether the ratios of this run become the recorded ones. */
  readonly record: boolean
  /** A folder with reports of a run that has been made, in the place of a new one. */
  readonly from: string | undefined
}

export function readArguments(args: readonly string[]): Wanted {
  const { values } = parseArgs({
    args: [...args],
    options: {
      only: { type: 'string', default: '' },
      rounds: { type: 'string', default: '31' },
      out: { type: 'string' },
      record: { type: 'boolean', default: false },
      from: { type: 'string' },
    },
  })
  const rounds = Number(values.rounds)
  if (!Number.isInteger(rounds) || rounds < 1) throw new RangeError(`--rounds ${values.rounds}: expected a whole number above 0`)
  return { only: values.only, rounds, out: values.out, record: values.record, from: values.from }
}
