/** One sequence's queries, keys and values, and the keys that each query attends to: attention by its definition, in 64-bit floats. */
export interface Naive {
  readonly queries: number
  readonly queryHeads: number
  readonly kvHeads: number
  readonly keys: number
  readonly valueDim: number
  /** The vectors of a query, a key and a value. */
  readonly q: (head: number, query: number) => readonly number[]
  readonly k: (head: number, key: number) => readonly number[]
  readonly v: (head: number, key: number) => readonly number[]
  readonly shows: (query: number, key: number) => boolean
  readonly scale: number
  readonly softcap?: number | undefined
  readonly sinkLogits?: readonly number[] | undefined
  readonly alibiSlopes?: readonly number[] | undefined
  /** The position of a query minus that of a key; needed with slopes. */
  readonly distance?: (query: number, key: number) => number
  readonly mask?: ((head: number, query: number, key: number) => number) | undefined
}

/** An output and its log-sum-exp, for one head and query. */
export interface NaiveRow {
  readonly out: readonly number[]
  readonly lse: number
}

/** One row: all scores, a softmax, all values. */
export function naiveRow(of: Naive, head: number, query: number): NaiveRow {
  const kvHead = Math.floor(head / (of.queryHeads / of.kvHeads))
  const scored: (readonly [key: number, score: number])[] = []
  for (let key = 0; key < of.keys; key++) {
    if (!of.shows(query, key)) continue
    const [q, k] = [of.q(head, query), of.k(kvHead, key)]
    let score = of.scale * q.reduce((sum, value, at) => sum + value * (k[at] as number), 0)
    if (of.softcap !== undefined) score = of.softcap * Math.tanh(score / of.softcap)
    if (of.alibiSlopes !== undefined) score -= (of.alibiSlopes[head] as number) * (of.distance?.(query, key) as number)
    score += of.mask?.(head, query, key) ?? 0
    if (score !== -Infinity) scored.push([key, score])
  }
  const sink = of.sinkLogits?.[head]
  const max = scored.reduce((most, [, score]) => Math.max(most, score), sink ?? -Infinity)
  const out = Array.from({ length: of.valueDim }, () => 0)
  let sum = sink === undefined ? 0 : Math.exp(sink - max)
  for (const [key, score] of scored) {
    const weight = Math.exp(score - max)
    sum += weight
    for (const [at, value] of of.v(kvHead, key).entries()) out[at] = (out[at] as number) + weight * value
  }
  return sum === 0 ? { out, lse: -Infinity } : { out: out.map(value => value / sum), lse: max + Math.log(sum) }
}
