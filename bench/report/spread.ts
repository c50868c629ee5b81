// Medians and spreads of what was measured round by round.

/** The middle of some numbers, and where the lowest and the highest tenth of them end. */
export interface Spread {
  readonly median: number
  readonly p10: number
  readonly p90: number
}

/** Between the two nearest of `sorted` where the share falls between them. */
function percentile(sorted: readonly number[], share: number): number {
  const at = share * (sorted.length - 1)
  const [low, high] = [sorted[Math.floor(at)] as number, sorted[Math.ceil(at)] as number]
  return low + (high - low) * (at - Math.floor(at))
}

export function spreadOf(values: readonly number[]): Spread {
  if (values.length === 0) throw new RangeError('a spread of nothing')
  const sorted = [...values].sort((a, b) => a - b)
  return { median: percentile(sorted, 0.5), p10: percentile(sorted, 0.1), p90: percentile(sorted, 0.9) }
}

/** The ratio of two medians, with the spread of the ratios of the rounds: round by round both ran in the same weather. */
export function ratioOf(over: readonly number[], under: readonly number[]): Spread {
  if (over.length !== under.length) throw new RangeError('rounds of two runs')
  const rounds = over.map((value, round) => value / (under[round] as number))
  return { ...spreadOf(rounds), median: spreadOf(over).median / spreadOf(under).median }
}

export function ratioOfRatios([over = [], under = []]: readonly (readonly number[])[], [baseOver = [], baseUnder = []]: readonly (readonly number[])[]): Spread {
  const rounds = over.map((value, round) => value / (under[round] as number) / ((baseOver[round] as number) / (baseUnder[round] as number)))
  return { ...spreadOf(rounds), median: ratioOf(over, under).median / ratioOf(baseOver, baseUnder).median }
}
