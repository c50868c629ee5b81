/**
 * A gate before calls of onnxruntime-node on a worker thread. When a thread is ended in the middle of one, onnxruntime-node ends the process with
 * an abort: so a process that exits waits here until the call is over, and no other one begins.
 *
 * ```text
 * worker       pass: inside = 1, the call, inside = 0
 * its owner    on exit: closed = 1, then waits until inside is 0
 * ```
 * Either the worker sees that the gate is closed, or its owner sees that somebody is inside. What is waited for is one call, of one part or
 * of a step. A worker whose owner is itself a worker that is terminated has no such moment: whoever does that disposes of the model first.
 */

const INSIDE = 0
const CLOSED = 1

/** The gates of this thread's workers, which its exit closes. */
const gates = new Set<ExitGate>()

function closeAll(): void {
  for (const gate of gates) gate.close()
}

/** @internal A gate, made where the worker is made; in the worker over the same memory. */
export class ExitGate {
  readonly memory: SharedArrayBuffer
  readonly #state: Int32Array

  constructor(memory?: SharedArrayBuffer) {
    this.memory = memory ?? new SharedArrayBuffer(8)
    this.#state = new Int32Array(this.memory)
    if (memory !== undefined) return
    if (gates.size === 0) process.on('exit', closeAll)
    gates.add(this)
  }

  /** Makes a call inside. Where the gate is closed it never does: the thread rests until it is ended. */
  async pass<T>(call: () => T | Promise<T>): Promise<T> {
    Atomics.store(this.#state, INSIDE, 1)
    if (Atomics.load(this.#state, CLOSED) === 1) {
      this.#leave()
      Atomics.wait(this.#state, CLOSED, 1)
    }
    try {
      return await call()
    } finally {
      this.#leave()
    }
  }

  /** Lets nobody in any longer, and holds this thread up until nobody is inside. */
  close(): void {
    Atomics.store(this.#state, CLOSED, 1)
    while (Atomics.load(this.#state, INSIDE) === 1) Atomics.wait(this.#state, INSIDE, 1)
  }

  /** The worker has ended. */
  forget(): void {
    // A worker that was ended by force may have left it inside.
    this.#leave()
    gates.delete(this)
    if (gates.size === 0) process.off('exit', closeAll)
  }

  #leave(): void {
    Atomics.store(this.#state, INSIDE, 0)
    Atomics.notify(this.#state, INSIDE)
  }
}
