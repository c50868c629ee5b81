// The program of the session thread of one model (session-host.ts). It gets one request at a time, and answers when that is done. It ends by itself after the
// request `end`. Only a pending message keeps it alive.
import { parentPort, workerData, type MessagePort } from 'node:worker_threads'

import { crossed } from './crossed-error.js'
import { ExitGate } from './exit-gate.js'
import { computeLent, openSessions } from './open-sessions.js'
import type { SessionAnswer, SessionRequest } from './session-host.js'
import type { Sessions } from './sessions.js'

const port = parentPort as MessagePort
const gate = new ExitGate(workerData as SharedArrayBuffer)
let sessions: Sessions | undefined

async function answer(request: SessionRequest): Promise<SessionAnswer> {
  if ('open' in request) sessions = await openSessions(request.open, call => gate.pass(call))
  else if ('step' in request) await computeLent(sessions as Required<Sessions>, request.run, request.step)
  else if ('encode' in request) return { encoded: await (sessions as Required<Sessions>).encode(request.encode) }
  else await sessions?.release()
  return {}
}

async function take(request: SessionRequest): Promise<void> {
  let answered: SessionAnswer = {}
  try {
    answered = await answer(request)
  } catch (error) {
    answered = { error: crossed(error) }
  }
  const { encoded } = answered
  // The sessions have made a copy.
  const moved = encoded === undefined ? [] : [encoded.data.buffer as ArrayBuffer]
  port.postMessage({ ...answered, isPruned: sessions?.isPruned === true }, moved)
  // Nothing else keeps the thread alive, so it ends. Deno's port has no `close`.
  if ('end' in request) port.unref()
}

/** @internal Listens, and handles the messages that arrived while this module was loading: Deno drops messages without a listener. */
export function listen(early: readonly SessionRequest[]): void {
  port.on('message', (request: SessionRequest) => void take(request))
  for (const request of early) void take(request)
}
