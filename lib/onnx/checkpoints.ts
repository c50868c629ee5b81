/**
 * The positions at which checkpoints are taken: steps of a prompt end there, so that the states of its layers are kept. It uses numbers only, so that it can be
 * simulated.
 *
 * A state cannot be cut at a token, so a later prompt continues from the deepest checkpoint that it has in common with this one. Positions are whole blocks,
 * behind the tokens that the sequence starts from:
 *
 * 1. the last whole block before the end of the prompt
 * 2. the end of the part that all tenants share (`saltFrom`)
 * 3. positions that the caller names: the ends of messages
 * 4. the junction: the position at which the prompt leaves those before it, so that the next prompt that shares as much finds it
 * 5. between these, steps of equal length, so that no prompt computes more than an interval again
 *
 * Checkpoints of answers need no step of their own: tokens that come one by one leave the newest whole block.
 */

/** The part of a prompt up to which a prompt may have to be computed again, for want of a checkpoint. */
const SHARE = 8
/** The least interval, in tokens: shorter steps cost more than they save. */
const LEAST = 512
/** The part of all checkpoints that one prompt may take with its intervals. */
const TAKEN = 2

/** @internal The positions of a prompt that matter, in tokens. */
export interface Placing {
  readonly blockSize: number
  /** The tokens of the prompt. */
  readonly length: number
  /** The tokens that the sequence starts from. */
  readonly found: number
  /** The tokens that prompts before this one had as well. */
  readonly seen: number
  /** The end of the part that tenants share. */
  readonly saltFrom: number | undefined
  /** The positions that the caller names. */
  readonly named: readonly number[]
  /** The most tokens between two checkpoints: see {@link intervalOf}. */
  readonly interval: number
}

/**
 * @internal The most tokens between two checkpoints of a prompt, in whole blocks: an eighth of the prompt, at least 512, and at least so many that a prompt takes no
 * more than half of all `slots`.
 */
export function intervalOf(length: number, slots: number, blockSize: number): number {
  const room = Math.max(Math.floor(slots / TAKEN), 1)
  const tokens = Math.max(Math.ceil(length / SHARE), LEAST, Math.ceil(length / room))
  return Math.ceil(tokens / blockSize) * blockSize
}

/** @internal The positions at which steps have to end, ascending. O(positions), besides sorting those that are given. */
export function checkpointsOf({ blockSize, length, found, seen, saltFrom, named, interval }: Placing): number[] {
  const last = Math.floor(Math.max(length - 1, 0) / blockSize)
  const given = saltFrom === undefined ? [length, seen, ...named] : [length, seen, saltFrom, ...named]
  const wanted = given.map(position => Math.min(Math.floor(position / blockSize), last))
  const ends = new Set(wanted.filter(end => end * blockSize > found).sort((one, other) => one - other))
  const positions: number[] = []
  let before = Math.floor(found / blockSize)
  for (const end of ends) {
    const parts = Math.ceil((end - before) / (interval / blockSize))
    for (let part = 1; part <= parts; part++)
      positions.push((before + Math.floor(((end - before) * part) / parts)) * blockSize)
    before = end
  }
  return positions
}
