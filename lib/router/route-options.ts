// The options of `route`, which `PrefixRouter` and `DynamoRouter` share, and their check.
import { float, known, type Names, optional } from '../errors/check.js'

/** Options for choosing a worker. */
export interface RouteOptions {
  /**
   * The number of blocks to compute that one unit of load is worth: the worker with the lowest sum of both is chosen. Without it, the worker with the
   * longest prefix is chosen, and of equal ones the one with the lowest load. Ties are broken by a hash of the prompt's first block.
   */
  readonly loadWeight?: number
}

const OPTIONS: Names<RouteOptions> = { loadWeight: 0 }

/** @internal Checks the options. Returns `loadWeight`, if given. */
export function readRouteOptions(options: unknown): number | undefined {
  const { loadWeight } = known<RouteOptions>('options', options, OPTIONS)
  return optional(
    (argument, value) => float(argument, value, number => number >= 0, 'a finite number, 0 or more'),
    'loadWeight',
    loadWeight,
  )
}
