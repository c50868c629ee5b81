import { float, known, type Names, optional } from '../border/check.js'
import type { RouteOptions } from './prefix-router.js'

const OPTIONS: Names<RouteOptions> = { loadWeight: 0 }

/** @internal How many blocks of computing one unit of load is worth, if anything. */
export function readRouteOptions(options: unknown): number | undefined {
  const { loadWeight } = known<RouteOptions>('options', options, OPTIONS)
  return optional((argument, value) => float(argument, value, number => number >= 0, 'a finite number from 0 on'), 'loadWeight', loadWeight)
}
