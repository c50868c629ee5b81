// The options of `npm start`.
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

/** The options after they were checked. */
export interface Given {
  /** A folder, a file, or a name on the Hub. */
  readonly model: string
  readonly dtype: string | undefined
  readonly questions: number
  readonly threads: number
  readonly isDemo: boolean
}

const DEMO = fileURLToPath(new URL('../../packages/serve/demo', import.meta.url))

export const USAGE = `npm start [-- options]

  --model <folder | org/name>   a model with a chat template; by default the demo's own, of a million weights
  --dtype <f32 | f16 | q8 | q4> the graph of the folder
  --questions <n>               questions before the chat: 20 for the demo, 5 for other models, which take longer
  --threads <n>                 threads for the model, 2 by default`

/** Reads the options of the command line. */
export function given(args: readonly string[]): Given | 'help' {
  const { values } = parseArgs({
    args: [...args],
    options: {
      model: { type: 'string' },
      dtype: { type: 'string' },
      questions: { type: 'string' },
      threads: { type: 'string' },
      help: { type: 'boolean', short: 'h' },
    },
  })
  if (values.help === true) return 'help'
  const isDemo = values.model === undefined
  return {
    model: values.model ?? DEMO,
    dtype: values.dtype,
    questions: count('--questions', values.questions, isDemo ? 20 : 5, 1000),
    threads: count('--threads', values.threads, 2, 64),
    isDemo,
  }
}

function count(name: string, value: string | undefined, usual: number, most: number): number {
  const number = value === undefined ? usual : Number(value)
  if (Number.isInteger(number) && number >= 1 && number <= most) return number
  throw new TypeError(`${name}: expected a whole number from 1 to ${most}, got '${value}'`)
}
