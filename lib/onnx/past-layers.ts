// Derives the layers of a cache from the pasts of a graph that is not rewritten.
import { invalid } from '../errors/errors.js'
import type { ModelDescription, ModelLayer, StateTensor } from '../sequences/model-description.js'
import { isSlid } from './carried.js'
import type { CarriedPort, OnnxPorts } from './ports.js'
import { refusedPort } from './refused-node.js'
import { type StatePort, tensorOf } from './state-ports.js'

/** @internal Properties of layers that come from configs and the rewritten graph. */
export interface DeclaredLayers {
  /** The same for all layers. */
  readonly numKvHeads?: number | undefined
  readonly headDim?: number | undefined
  /** The window of each layer, `null` if it has none. */
  readonly windows?: (number | null)[] | undefined
  /** The layers that were recognised in the graph, in order. */
  readonly found?: readonly FoundLayer[] | undefined
}

/** A layer that was recognised in a graph. */
interface FoundLayer {
  readonly numKvHeads: number
  readonly headDim: number
  readonly valueHeadDim: number
  readonly window?: number
}

/** Properties of one layer. */
type Sizes = Pick<DeclaredLayers, 'numKvHeads' | 'headDim'> & { readonly found: FoundLayer | undefined }

/**
 * @internal Derives the layers of a graph from its pasts and states. Sizes that these do not declare must come from `declared`. A window counts only if the
 * graph slides the past itself: any other graph may see all rows, whatever was declared, so all of them are kept.
 *
 * Layers have the order of their numbers. A number without a past and without a state is that of a layer that keeps nothing, and is left out.
 */
export function pastLayers(ports: OnnxPorts, declared: DeclaredLayers): ModelDescription['layers'] {
  const { layers, numbers, states } = ports
  const windows = windowsOf(ports, declared.windows)
  const found = declared.found?.length === layers.length ? declared.found : undefined
  const all = [...new Set([...numbers, ...states.map(({ layer }) => layer)])].toSorted((one, other) => one - other)
  return all.map((number): ModelDescription['layers'][number] => {
    const place = numbers.indexOf(number)
    const tensors = states.filter(({ layer }) => layer === number).map(stateTensor)
    const own = tensors.length === 0 ? {} : { tensors }
    if (place < 0) return { kind: 'state', tensors }
    const pair = layers[place] as OnnxPorts['layers'][number]
    return { ...attentionLayer(pair, windows?.[place], { ...declared, found: found?.[place] }), ...own }
  })
}

/** A layer with keys and values. */
function attentionLayer(
  [key, value]: OnnxPorts['layers'][number],
  declared: number | null | undefined,
  { numKvHeads, headDim, found }: Sizes,
): ModelLayer {
  const sizes = {
    numKvHeads: sizeOf(key, 1, found?.numKvHeads ?? numKvHeads),
    headDim: sizeOf(key, 3, found?.headDim ?? headDim),
    valueHeadDim: sizeOf(value, 3, found?.valueHeadDim ?? headDim),
  }
  const window = isSlid(key) ? (declared ?? found?.window) : undefined
  return window === undefined ? { kind: 'full', ...sizes } : { kind: 'sliding', window, ...sizes }
}

/** @internal The windows of the layers with keys and values. Those of a model with states are declared for all of its layers, by number, or for these alone. */
export function windowsOf(
  { layers, numbers, states }: OnnxPorts,
  windows: DeclaredLayers['windows'],
): DeclaredLayers['windows'] {
  if (windows === undefined || windows.length === layers.length) return windows
  if (states.length > 0 && (numbers.at(-1) ?? 0) < windows.length) return numbers.map(number => windows[number] ?? null)
  throw invalid('config', windows.length, `${layers.length} layers, as the graph has`)
}

function stateTensor(port: StatePort): StateTensor {
  const tensor = tensorOf(port)
  if (tensor !== undefined) return tensor
  throw refusedPort(port.past, 'input', 'the graph does not declare its type and its dimensions', 'form')
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
