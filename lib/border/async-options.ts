/** Options of calls that work off the main thread. */
export interface AsyncOptions {
  /** Ends the work early: the promise is then rejected with `ABORTED`, and the signal's reason as its cause. */
  readonly signal?: AbortSignal
}
