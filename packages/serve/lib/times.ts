// Time limits in seconds, as timers take them.

/** The longest time of a timer in milliseconds, about 25 days. A timer of a longer time ends at once. */
const LONGEST_MS = 2 ** 31 - 1

/** @internal Returns the whole milliseconds of a time limit. Without a limit (`Infinity`), it is the longest time of a timer. */
export const timerMs = (seconds: number): number => Math.min(Math.ceil(seconds * 1000), LONGEST_MS)
