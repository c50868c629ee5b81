/**
 * A gate in front of calls of onnxruntime-node on a worker thread. If a thread is terminated during such a call, onnxruntime-node aborts the
 * process. So a process that exits waits here until the call has ended, and no other call begins.
 *
 * ```text
 * worker       pass: inside = 1, the call, inside = 0
 * its owner    on exit: closed = 1, then waits until inside is 0
 * ```
 * Either the worker sees that the gate is closed, or its owner sees that a call is inside. The wait is as long as one call: one subgraph or one
 * step. If the owner is itself a worker and is terminated, it cannot close the gate: dispose of the model before terminating it.
 */

const INSIDE = 0
const CLOSED = 1

/** The gates of this thread's workers, which its exit closes. */
const gates = new Set<ExitGate>()

function closeAll(): void {
  for (const gate of gates) gate.close()
}

/** @internal A gate. The owner makes it, and the worker makes another one over the same memory. */
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

  /** Makes a call inside the gate. If the gate is closed, the call is never made: the thread blocks until it is terminated. */
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

  /** Lets no further call in, and blocks this thread until no call is inside. */
  close(): void {
    Atomics.store(this.#state, CLOSED, 1)
    while (Atomics.load(this.#state, INSIDE) === 1) Atomics.wait(this.#state, INSIDE, 1)
  }

  /** Called when the worker has ended. */
  forget(): void {
    // If the worker was terminated, it may have been inside.
    this.#leave()
    gates.delete(this)
    if (gates.size === 0) process.off('exit', closeAll)
  }

  #leave(): void {
    Atomics.store(this.#state, INSIDE, 0)
    Atomics.notify(this.#state, INSIDE)
  }
}
