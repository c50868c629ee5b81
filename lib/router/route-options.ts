import { float, known, type Names, optional } from '../border/check.js'

/** How a worker is chosen. */
export interface RouteOptions {
  /**
   * How many blocks of computing one unit of load is worth: the worker with the least of both is chosen. Without it, the one with the longest
   * prefix, and of those the one with the least load. Of workers that are alike the start of the prompt says which one.
   */
  readonly loadWeight?: number
}

const OPTIONS: Names<RouteOptions> = { loadWeight: 0 }

/** @internal How many blocks of computing one unit of load is worth, if anything. */
export function readRouteOptions(options: unknown): number | undefined {
  const { loadWeight } = known<RouteOptions>('options', options, OPTIONS)
  return optional((argument, value) => float(argument, value, number => number >= 0, 'a finite number from 0 on'), 'loadWeight', loadWeight)
}
