// The part of `kvtide inspect` and `kvtide doctor` about a model: which backends run it, and for the others the reason and the advice.
import { adviceOf } from '../errors/errors.js'
import { type BackendReport, backendReports } from '../onnx/backend-reports.js'

/** The answer about a model. */
export interface BackendsAnswer {
  readonly text: string
  readonly json: readonly object[]
  /** True if at least one backend runs it. */
  readonly runs: boolean
}

/** Answers which backends run the model in a file. `config` is a config in place of the one beside it. */
export async function backendsAnswer(file: string, config?: string): Promise<BackendsAnswer> {
  const reports = await backendReports(file, config)
  return {
    text: unreadable(reports) ?? reports.map(asText).join('\n'),
    json: reports.map(asJson),
    runs: reports.some(({ refusal }) => refusal === undefined),
  }
}

/** One line for a file that is no model: all backends then have the same error, without advice. */
function unreadable([first, ...others]: readonly BackendReport[]): string | undefined {
  const { refusal } = first ?? {}
  if (refusal === undefined || adviceOf(refusal) !== undefined) return undefined
  return others.every(other => other.refusal === refusal) ? `no backend runs it: ${refusal.message}` : undefined
}

/** One line for a backend that runs the model, otherwise two: the place and the reason, then the advice. */
function asText({ backend, refusal }: BackendReport): string {
  const name = backend.padEnd(10)
  if (refusal === undefined) return `${name} runs it`
  const advice = adviceOf(refusal)
  if (advice === undefined) return `${name} refuses it: ${refusal.message}`
  return `${name} refuses it at ${advice.place}\n${' '.repeat(10)} ${advice.help}`
}

function asJson({ backend, refusal }: BackendReport): object {
  if (refusal === undefined) return { backend, runs: true }
  const { code, message, details } = refusal
  return { backend, runs: false, error: { code, message, details }, advice: adviceOf(refusal)?.help }
}
