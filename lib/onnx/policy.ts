/**
 * Which tokens the next step computes: numbers alone, so that it can be simulated.
 *
 * 1. Tasks are in order of arrival, and stay in it whatever happens to them.
 * 2. A step takes one token of each task that decodes, with what it has drafted, then pieces of prompts, in order of arrival, until it has
 *    `budget` tokens.
 * 3. A task takes part once there is room for all its tokens. Where there is none, the youngest task that arrived after it makes room.
 *    Nobody waits for one that arrived later; one that rests makes room for everybody if nothing else can be computed.
 * 4. Where there is no room in a step, the youngest task makes room. A task that is alone and has none is refused.
 *
 * A task that made room keeps its place. Its tokens are computed again, apart from those that prompts still find.
 */

/** @internal A task as far as the choice depends on it. */
export interface Candidate {
  /** How many tokens are to be computed; 0 while it rests. */
  readonly pending: number
  /** Whether it takes part: it was given room. */
  readonly isAdmitted: boolean
  /** How many drafted tokens it would like to have judged. */
  readonly drafts: number
}

/** @internal What a task gets in a step. */
export interface Share {
  /** Its place among the candidates. */
  readonly place: number
  readonly tokens: number
  readonly drafts: number
}

/** @internal The shares of a step, of tasks that take part, in order of arrival: those that decode first. O(candidates). */
export function sharesOf(candidates: readonly Candidate[], budget: number): Share[] {
  const decoding: Share[] = []
  let left = budget
  for (const [place, { isAdmitted, pending, drafts }] of candidates.entries()) {
    if (left === 0) break
    if (!isAdmitted || pending !== 1) continue
    decoding.push({ place, tokens: 1, drafts })
    left -= 1
  }
  const shares = decoding.map(share => {
    const drafts = Math.min(share.drafts, left)
    left -= drafts
    return { ...share, drafts }
  })
  for (const [place, { isAdmitted, pending }] of candidates.entries()) {
    if (left === 0) break
    if (!isAdmitted || pending < 2) continue
    const tokens = Math.min(pending, left)
    shares.push({ place, tokens, drafts: 0 })
    left -= tokens
  }
  return shares
}

/** @internal What is done about a task that waits. */
export interface Admission {
  /** Whether there is room for all tokens of a candidate. */
  hasRoom(place: number): boolean
  admit(place: number): void
  /** Takes a candidate's room away; says whether it could. */
  preempt(place: number): boolean
}

/** @internal Lets candidates take part, in order of arrival, as far as there is room for them. `isAdmitted` has to follow `admit` and `preempt`. */
export function admit(candidates: readonly Candidate[], most: number, { hasRoom, admit: accept, preempt }: Admission): void {
  for (const [place, candidate] of candidates.entries()) {
    if (candidate.isAdmitted || candidate.pending === 0) continue
    const count = () => candidates.filter(other => other.isAdmitted).length
    const fits = () => count() === 0 || (count() < most && hasRoom(place))
    while (!fits() && takeFrom(candidates, place, preempt)) continue
    if (!fits()) return
    accept(place)
  }
}

/** Takes room away from the youngest task behind `place`; from one that rests before it where nothing else is computed. */
function takeFrom(candidates: readonly Candidate[], place: number, preempt: (place: number) => boolean): boolean {
  for (let other = candidates.length - 1; other > place; other--) {
    if ((candidates[other] as Candidate).isAdmitted && preempt(other)) return true
  }
  if (candidates.some(({ isAdmitted, pending }) => isAdmitted && pending > 0)) return false
  for (let other = place - 1; other >= 0; other--) {
    if ((candidates[other] as Candidate).isAdmitted && preempt(other)) return true
  }
  return false
}
