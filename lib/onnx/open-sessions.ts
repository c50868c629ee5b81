// Opens the sessions of the backends `parts` and `plain`, and computes a step with them, on the thread that calls: the session thread, or the model's own
// thread with onnxruntime-node before 1.22.
import { LentRun } from '../sequences/lent-run.js'
import { EncoderSession } from './encoder-session.js'
import { Parts } from './parts.js'
import { Plain } from './plain.js'
import type { RuntimeCall, Sessions, SessionsModel, SessionStep } from './sessions.js'

/** @internal Opens sessions on this thread. */
export function openSessions(model: SessionsModel, calling: RuntimeCall): Promise<Sessions> {
  if (model.kind === 'encoder') return EncoderSession.open(model, calling)
  return model.kind === 'parts' ? Parts.open(model, calling) : Plain.open(model, calling)
}

/** @internal Computes a step with the run of this number, and returns the run to its owner. */
export async function computeLent(
  sessions: Required<Pick<Sessions, 'compute'>>,
  run: number,
  step: SessionStep,
): Promise<void> {
  using lent = LentRun.taken(run)
  await sessions.compute(lent, step)
}
