// Finds the name that a mistyped one stands for.

/** Returns the known name that is most similar to `name`: at most a third of its letters away. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  const most = Math.max(1, Math.floor(name.length / 3))
  const near = known.map(other => ({ other, far: distance(name, other) })).filter(({ far }) => far <= most)
  return near.toSorted((one, other) => one.far - other.far)[0]?.other
}

/** The number of letters to change, add or remove; two that are swapped with each other count as one. O(product of the two lengths). */
function distance(one: string, other: string): number {
  const rows = Array.from({ length: one.length + 1 }, (_, row) =>
    Array.from({ length: other.length + 1 }, (__, column) => Math.max(row, column)),
  )
  const at = (row: number, column: number): number => rows[row]?.[column] ?? Infinity
  for (let row = 1; row <= one.length; row++)
    for (let column = 1; column <= other.length; column++) {
      const isSame = one[row - 1] === other[column - 1]
      const isSwapped = one[row - 1] === other[column - 2] && one[row - 2] === other[column - 1]
      ;(rows[row] as number[])[column] = Math.min(
        at(row - 1, column) + 1,
        at(row, column - 1) + 1,
        at(row - 1, column - 1) + (isSame ? 0 : 1),
        isSwapped ? at(row - 2, column - 2) + 1 : Infinity,
      )
    }
  return at(one.length, other.length)
}
