// Derives the layers of a cache from the pasts of a graph that is not rewritten.
import { invalid } from '../errors/errors.js'
import type { ModelLayer } from '../sequences/model-description.js'
import { isSlid } from './carried.js'
import { type CarriedPort, type OnnxPorts, refusedPort } from './ports.js'

/** @internal Properties of layers that come from configs and the rewritten graph. */
export interface DeclaredLayers {
  /** The same for all layers. */
  readonly numKvHeads?: number | undefined
  readonly headDim?: number | undefined
  /** The window of each layer, `null` if it has none. */
  readonly windows?: (number | null)[] | undefined
  /** The layers that were recognised in the graph, in order. */
  readonly found?:
    | readonly {
        readonly numKvHeads: number
        readonly headDim: number
        readonly valueHeadDim: number
        readonly window?: number
      }[]
    | undefined
}

/**
 * @internal Derives the layers of a graph from its pasts. Sizes that these do not declare must come from `declared`. A window counts only if the
 * graph slides the past itself: any other graph may see all rows, whatever was declared, so all of them are kept.
 */
export function pastLayers(
  { layers }: OnnxPorts,
  { numKvHeads, headDim, windows, found }: DeclaredLayers,
): ModelLayer[] {
  if (windows !== undefined && windows.length !== layers.length)
    throw invalid('config', windows.length, `${layers.length} layers, as the graph has`)
  return layers.map((pair, place) => {
    const layer = found?.length === layers.length ? found[place] : undefined
    const sizes = {
      numKvHeads: sizeOf(pair[0], 1, layer?.numKvHeads ?? numKvHeads),
      headDim: sizeOf(pair[0], 3, layer?.headDim ?? headDim),
      valueHeadDim: sizeOf(pair[1], 3, layer?.valueHeadDim ?? headDim),
    }
    const window = isSlid(pair[0]) ? (windows?.[place] ?? layer?.window) : undefined
    return window === undefined ? { kind: 'full', ...sizes } : { kind: 'sliding', window, ...sizes }
  })
}

/** A size of a past: its heads, or elements per head. */
function sizeOf({ past, input: { shape } }: CarriedPort, axis: 1 | 3, known: number | undefined): number {
  const size = shape?.[axis]
  if (typeof size === 'number') return size
  if (known !== undefined) return known
  throw refusedPort(
    past,
    'input',
    `the graph does not declare how many ${axis === 1 ? 'heads' : 'elements per head'} it has, and no config does`,
    'config',
  )
}
