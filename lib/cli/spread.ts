// Medians and spreads of measurements taken round by round.

/** The median of some numbers, and the bounds of their lowest and highest tenth. */
export interface Spread {
  readonly median: number
  readonly p10: number
  readonly p90: number
}

/** Interpolates between the two nearest of `sorted` if the share falls between them. */
function percentile(sorted: readonly number[], share: number): number {
  const at = share * (sorted.length - 1)
  const [low, high] = [sorted[Math.floor(at)] as number, sorted[Math.ceil(at)] as number]
  return low + (high - low) * (at - Math.floor(at))
}

export function spreadOf(values: readonly number[]): Spread {
  if (values.length === 0) throw new RangeError('no values: a spread needs at least one')
  const sorted = [...values].sort((a, b) => a - b)
  return { median: percentile(sorted, 0.5), p10: percentile(sorted, 0.1), p90: percentile(sorted, 0.9) }
}

/** The ratio of two medians, with the spread of the rounds' ratios: within a round, both ran under the same conditions. */
export function ratioOf(over: readonly number[], under: readonly number[]): Spread {
  if (over.length !== under.length)
    throw new RangeError(`expected the same number of rounds: ${over.length} and ${under.length} given`)
  const rounds = over.map((value, round) => value / (under[round] as number))
  return { ...spreadOf(rounds), median: spreadOf(over).median / spreadOf(under).median }
}

export function ratioOfRatios(
  [over = [], under = []]: readonly (readonly number[])[],
  [baseOver = [], baseUnder = []]: readonly (readonly number[])[],
): Spread {
  const rounds = over.map(
    (value, round) => value / (under[round] as number) / ((baseOver[round] as number) / (baseUnder[round] as number)),
  )
  return { ...spreadOf(rounds), median: ratioOf(over, under).median / ratioOf(baseOver, baseUnder).median }
}
