import { parentPort, workerData, type MessagePort } from 'node:worker_threads'

import { crossed } from './crossed-error.js'
import { ExitGate } from './exit-gate.js'
import { computeLent, openSessions } from './open-sessions.js'
import type { SessionAnswer, SessionRequest } from './session-host.js'
import type { Sessions } from './sessions.js'

/**
 * A worker thread with the sessions of one model (`session-host.ts`). It is asked for one thing at a time, and answers when that is done; it ends
 * by itself when it was asked to. Nothing but a message keeps it alive.
 */

const port = parentPort as MessagePort
const gate = new ExitGate(workerData as SharedArrayBuffer)
let sessions: Sessions | undefined

async function answer(request: SessionRequest): Promise<void> {
  if ('open' in request) sessions = await openSessions(request.open, call => gate.pass(call))
  else if ('step' in request) await computeLent(sessions as Sessions, request.run, request.step)
  else await sessions?.release()
}

port.on('message', async (request: SessionRequest) => {
  let answered: SessionAnswer = {}
  try {
    await answer(request)
  } catch (error) {
    answered = { error: crossed(error) }
  }
  port.postMessage(answered)
  if ('end' in request) port.close()
})
