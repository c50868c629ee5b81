// Counters, gauges and histograms in Prometheus' text format.

/** Labels of a sample. */
export type Labels = Readonly<Record<string, string>>

/** A number in Prometheus' notation. */
export function written(value: number): string {
  if (Number.isNaN(value)) return 'NaN'
  if (Number.isFinite(value)) return String(value)
  return value > 0 ? '+Inf' : '-Inf'
}

/** Labels in braces, in the given order; nothing without labels. */
function braced(labels: Labels): string {
  const quoted = Object.entries(labels).map(
    ([name, value]) => `${name}="${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`,
  )
  return quoted.length === 0 ? '' : `{${quoted.join(',')}}`
}

/** The head of a metric, and its samples. */
export function metric(
  name: string,
  type: 'gauge' | 'counter',
  help: string,
  samples: readonly (readonly [Labels, number])[],
): string {
  const lines = samples.map(([labels, value]) => `${name}${braced(labels)} ${written(value)}`)
  return [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines].join('\n')
}

/** Counts by one label. */
export class Counts {
  readonly #counts = new Map<string, number>()

  add(label: string, by = 1): void {
    this.#counts.set(label, (this.#counts.get(label) ?? 0) + by)
  }

  of(label: string): number {
    return this.#counts.get(label) ?? 0
  }

  entries(): [string, number][] {
    return [...this.#counts]
  }
}

/** A histogram with fixed buckets. A sample costs O(log buckets). */
export class Histogram {
  readonly #bounds: readonly number[]
  readonly #counts: number[]
  #sum = 0
  #count = 0

  /** `bounds` are the upper ends of the buckets, ascending. */
  constructor(bounds: readonly number[]) {
    this.#bounds = bounds
    this.#counts = bounds.map(() => 0)
  }

  /** Adds a value, as often as `times`. */
  add(value: number, times = 1): void {
    this.#sum += value * times
    this.#count += times
    let [low, high] = [0, this.#bounds.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (value <= (this.#bounds[middle] as number)) high = middle
      else low = middle + 1
    }
    if (low < this.#counts.length) this.#counts[low] = (this.#counts[low] as number) + times
  }

  /** The histogram in Prometheus' format. */
  text(name: string, help: string, labels: Labels): string {
    let below = 0
    const buckets = this.#bounds.map((bound, place) => {
      below += this.#counts[place] as number
      return `${name}_bucket${braced({ ...labels, le: written(bound) })} ${below}`
    })
    return [
      `# HELP ${name} ${help}`,
      `# TYPE ${name} histogram`,
      ...buckets,
      `${name}_bucket${braced({ ...labels, le: '+Inf' })} ${this.#count}`,
      `${name}_sum${braced(labels)} ${written(this.#sum)}`,
      `${name}_count${braced(labels)} ${this.#count}`,
    ].join('\n')
  }
}
