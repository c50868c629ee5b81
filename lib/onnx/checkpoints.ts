/**
 * The positions at which checkpoints are taken: steps of a prompt end there, so that the states of its layers are kept. It uses numbers only, so that it can be
 * simulated.
 *
 * A state cannot be cut at a token, so a later prompt continues from the deepest checkpoint that it has in common with this one. Positions are whole blocks,
 * behind the tokens that the sequence starts from:
 *
 * 1. the last whole block before the end of the prompt, unless few tokens are computed behind a checkpoint: that step would cost more than it saves
 * 2. the end of the part that all tenants share (`saltFrom`)
 * 3. positions that the caller names: the ends of messages
 * 4. the junction: the position at which the prompt starts to differ from earlier prompts, so that the next prompt with the same start continues there
 * 5. in long prompts, positions near the end, at distances that grow eightfold: questions are short, so the text that the next question shares ends near the
 *    end of this prompt, at an unknown distance
 * 6. between these, steps of equal length, so that a prompt computes at most one interval again
 *
 * Checkpoints of answers need no step of their own: tokens that come one by one leave the newest whole block.
 */

/** The part of a prompt up to which a prompt may have to be computed again, for want of a checkpoint. */
const SHARE = 4
/** The least interval, in tokens: shorter steps cost more than they save. */
const LEAST = 1024
/** The part of all checkpoints that one prompt may take with its intervals and near its end. */
const TAKEN = 2
/** The most tokens behind a checkpoint for which the last whole block has no step of its own. */
const SHORT = 128
/** The least number of tokens to compute for positions near the end. */
const LONG = 512
/** The distance from the end of the last position near it, in tokens; one block, if blocks are larger. */
const NEAREST = 16
/** A distance from the end, as a multiple of the one before it. */
const GROWTH = 8
/** The part of the tokens to compute that is near the end. */
const NEAR = 4

/** @internal The positions of a prompt that matter, in tokens. */
export interface Placing {
  readonly blockSize: number
  /** The tokens of the prompt. */
  readonly length: number
  /** The tokens that the sequence starts from. */
  readonly found: number
  /** The tokens before the deepest checkpoint that the prompt has: `found`, or fewer if a sequence goes on. */
  readonly reached: number
  /** The tokens that prompts before this one had as well. */
  readonly seen: number
  /** The end of the part that tenants share. */
  readonly saltFrom: number | undefined
  /** The positions that the caller names. */
  readonly named: readonly number[]
  /** The number of states that the cache has room for. */
  readonly slots: number
}

/** The positions near the end of a prompt, in tokens, the last one first: at most `most`. */
function nearEnd({ blockSize, length, found }: Placing, most: number): number[] {
  const computed = length - found
  const positions: number[] = []
  if (computed < LONG) return positions
  for (let distance = Math.max(blockSize, NEAREST); distance <= computed / NEAR; distance *= GROWTH)
    positions.push(length - distance)
  return positions.slice(0, most)
}

/**
 * The most tokens between two checkpoints of a prompt, in whole blocks: a quarter of the prompt, at least 1,024, and at least so many that it takes no more
 * than `most` checkpoints.
 */
function intervalOf({ length, blockSize }: Placing, most: number): number {
  const tokens = Math.max(Math.ceil(length / SHARE), LEAST, Math.ceil(length / most))
  return Math.ceil(tokens / blockSize) * blockSize
}

/** @internal The positions at which steps have to end, ascending. O(positions), besides sorting those that are given. */
export function checkpointsOf(placing: Placing): number[] {
  const { blockSize, length, found, reached, seen, saltFrom, named, slots } = placing
  const room = Math.max(Math.floor(slots / TAKEN), 1)
  const near = nearEnd(placing, Math.floor((room - 1) / 2))
  const interval = intervalOf(placing, room - near.length)
  const last = Math.floor(Math.max(length - 1, 0) / blockSize)
  const given = [seen, ...named, ...near]
  if (length - reached > SHORT) given.push(length)
  if (saltFrom !== undefined) given.push(saltFrom)
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
