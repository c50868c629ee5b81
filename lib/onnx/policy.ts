/**
 * The scheduling policy: which tokens the next step computes. It uses numbers only, so that it can be simulated.
 *
 * 1. Tasks are in order of arrival, and always keep their place in it.
 * 2. A step takes one token of each task that decodes, with its drafted tokens, then chunks of prompts, in order of arrival, until it has
 *    `budget` tokens. While prompts are pending, drafted tokens take at most half of the budget that decoding leaves, so a prompt never
 *    waits for drafts. A chunk ends at the next position where a checkpoint is wanted (checkpoints.ts). A prompt whose start is being
 *    computed for a task before it waits for that start.
 * 3. A task is admitted once there is room for all its tokens. If there is none, blocks are taken from sequences that no task computes, then
 *    from the youngest task that arrived after it. No task waits for one that arrived later. An idle task loses its blocks only if nothing
 *    else can be computed.
 * 4. A task that has no room although no other is admitted is refused before any of its tokens is computed. If a step has no room, the
 *    youngest task is preempted. A task with an open transaction cannot be preempted: it continues, and the oldest task waits. If such a
 *    task arrived later and has not begun, it goes first, and it is the one that is refused if it has no room either.
 *
 * A preempted task keeps its place. Its tokens are computed again, except those that are still in the prefix cache.
 */

/** @internal The properties of a task that the policy depends on. */
export interface Candidate {
  /** The number of tokens to compute; 0 while it is idle. */
  readonly pending: number
  /** True if it was given room in steps. */
  readonly isAdmitted: boolean
  /** True if it has blocks, even if it is not admitted. */
  readonly isHolding: boolean
  /** True if a candidate before it computes the start of its prompt (common-starts.ts); false by default. */
  readonly isWaiting?: boolean
  /** The number of tokens that are drafted behind its pending one. Read only while it decodes, because drafting costs time. */
  readonly drafts: number
  /** The number of pending tokens behind which a step has to end, at least 1; `undefined` if a step may end anywhere. */
  readonly nextCut: number | undefined
}

/** @internal The share of a task in a step. */
export interface Share {
  /** Its place among the candidates. */
  readonly place: number
  readonly tokens: number
  readonly drafts: number
}

/** @internal The shares of a step, for admitted tasks in order of arrival: those that decode come first. O(candidates). */
export function sharesOf(candidates: readonly Candidate[], budget: number): Share[] {
  const decoding: { readonly place: number; readonly candidate: Candidate }[] = []
  const prompts: { readonly place: number; readonly candidate: Candidate; readonly chunk: number }[] = []
  for (const [place, candidate] of candidates.entries()) {
    const { isAdmitted, pending, isWaiting = false } = candidate
    if (!isAdmitted || pending === 0) continue
    if (pending === 1) decoding.push({ place, candidate })
    else if (!isWaiting) prompts.push({ place, candidate, chunk: Math.min(pending, candidate.nextCut ?? pending) })
  }
  const first = decoding.slice(0, budget)
  let left = budget - first.length
  const wanted = prompts.reduce((sum, { chunk }) => sum + chunk, 0)
  let draftsLeft = left - Math.min(wanted, Math.ceil(left / 2))
  const shares = first.map(({ place, candidate }) => {
    const drafts = draftsLeft === 0 ? 0 : Math.min(candidate.drafts, draftsLeft)
    draftsLeft -= drafts
    left -= drafts
    return { place, tokens: 1, drafts }
  })
  for (const { place, chunk } of prompts) {
    if (left === 0) break
    const tokens = Math.min(chunk, left)
    shares.push({ place, tokens, drafts: 0 })
    left -= tokens
  }
  return shares
}

/** @internal Calls that admit tasks and make room for them. */
export interface Admission {
  /** True if there is room for all tokens of a candidate: besides the other admitted tasks, or with the whole cache to itself. */
  hasRoom(place: number, isAlone: boolean): boolean
  admit(place: number): void
  /** Takes a candidate's room away. Returns false if that is impossible. */
  preempt(place: number): boolean
  /** Takes the room of a sequence that no candidate computes. Returns false if there was none. */
  reclaim(): boolean
  /** Called if no other task is admitted and there is no room. Returns true if the candidate was refused. */
  refuse(place: number): boolean
}

/** @internal Admits candidates in order of arrival, as far as there is room. `isAdmitted` and `isHolding` have to reflect the calls. */
export function admit(
  candidates: readonly Candidate[],
  most: number,
  { hasRoom, admit: accept, preempt, reclaim, refuse }: Admission,
): void {
  const admitted = (): number => candidates.filter(({ isAdmitted }) => isAdmitted).length
  // They have left: a later candidate that makes room does not bring them back.
  const refused = new Set<number>()
  const turnAway = (place: number): boolean => {
    if (refuse(place)) refused.add(place)
    return refused.has(place)
  }
  for (const [place, candidate] of candidates.entries()) {
    if (candidate.isAdmitted || candidate.pending === 0) continue
    while (admitted() >= most && takeFrom(candidates, place, 'isAdmitted', preempt)) continue
    if (admitted() >= most) return
    const fits = (): boolean => hasRoom(place, admitted() === 0)
    let hasFitted = fits()
    while (!hasFitted && (reclaim() || takeFrom(candidates, place, 'isHolding', preempt))) hasFitted = fits()
    if (hasFitted) {
      accept(place)
      continue
    }
    if (admitted() > 0) return
    // Those that still hold blocks have a transaction open.
    const holders = [...candidates.keys()].filter(
      other => other !== place && !refused.has(other) && candidates[other]?.isHolding === true,
    )
    if (holders.length > 0) return letFirst(holders, place)
    if (!turnAway(place)) return
  }

  /** Admits one of `holders` before the candidate at `place`; if none has room even with the blocks of that one, refuses the youngest. */
  function letFirst(holders: readonly number[], place: number): void {
    const pending = holders.filter(holder => (candidates[holder] as Candidate).pending > 0)
    const fitting = (): number | undefined => pending.find(holder => hasRoom(holder, true))
    const isHolding = candidates[place]?.isHolding === true
    const next = fitting() ?? (isHolding && preempt(place) ? fitting() : undefined)
    if (next !== undefined) accept(next)
    else if (pending.length > 0) refuse(pending.at(-1) as number)
  }
}

/** Takes an admission or blocks from the youngest task behind `place`; if nothing else is computed, also from idle tasks before it. */
function takeFrom(
  candidates: readonly Candidate[],
  place: number,
  what: 'isAdmitted' | 'isHolding',
  preempt: (place: number) => boolean,
): boolean {
  for (let other = candidates.length - 1; other > place; other--) {
    if ((candidates[other] as Candidate)[what] && preempt(other)) return true
  }
  if (candidates.some(({ isAdmitted, pending }) => isAdmitted && pending > 0)) return false
  for (let other = place - 1; other >= 0; other--) {
    if ((candidates[other] as Candidate)[what] && preempt(other)) return true
  }
  return false
}
