import { fields, known, type Names, text } from '../border/check.js'
import { invalid, KvTideError } from '../border/errors.js'

/**
 * What the inputs and outputs of a session are for. They go by name, never by place: exporters order them in different ways. Every input
 * has to be one that is known, since one that were left out or guessed would give wrong numbers.
 */

/** An input of a session, as onnxruntime describes it. */
export interface OnnxInput {
  readonly name: string
  readonly isTensor?: boolean
  readonly type?: string
  readonly shape?: readonly (number | string)[]
}

/** A session of onnxruntime-node, as far as it is looked at. */
export interface OnnxSession {
  readonly inputNames: readonly string[]
  readonly outputNames: readonly string[]
  /** Types and dimensions; older versions of onnxruntime-node do not say. */
  readonly inputMetadata?: readonly OnnxInput[]
}

/** How pasts and presents are called. `%d` stands for the layer's number. */
export interface OnnxNames {
  readonly pastKey: string
  readonly pastValue: string
  readonly presentKey: string
  readonly presentValue: string
}

const NAMES: Names<OnnxNames> = { pastKey: 0, pastValue: 0, presentKey: 0, presentValue: 0 }

/** The names that exporters give. */
const KNOWN: readonly OnnxNames[] = [
  { pastKey: 'past_key_values.%d.key', pastValue: 'past_key_values.%d.value', presentKey: 'present.%d.key', presentValue: 'present.%d.value' },
  { pastKey: 'past_key_%d', pastValue: 'past_value_%d', presentKey: 'present_key_%d', presentValue: 'present_value_%d' },
]

/** The inputs besides pasts. */
const INPUTS = ['input_ids', 'attention_mask', 'position_ids', 'use_cache_branch', 'num_logits_to_keep', 'kvtide.new_rows'] as const

/** One of the inputs that are no pasts. */
export type OnnxInputName = (typeof INPUTS)[number]

/** Keys or values of a layer. */
export interface CarriedPort {
  readonly past: string
  readonly present: string
  /** The output with new rows alone, where the session has it. */
  readonly newRows: string | undefined
  /** What the session says of the past. */
  readonly input: OnnxInput
}

/** The keys and the values of a layer, by the layer's number in the names. */
export type LayerPorts = readonly [key: CarriedPort, value: CarriedPort]

/** @internal The refusal of a graph by one of its inputs or outputs. */
export function refusedPort(node: string, operator: 'input' | 'output', reason: string): KvTideError<'UNSUPPORTED_GRAPH'> {
  return new KvTideError('UNSUPPORTED_GRAPH', `the graph cannot be run at ${node} (${operator}): ${reason}`, { node, operator, reason })
}

/** @internal What each input and output of a session is for. */
export class OnnxPorts {
  /** In the order of the layers' numbers. */
  readonly layers: readonly LayerPorts[]
  readonly #inputs: ReadonlyMap<string, OnnxInput>

  constructor(session: OnnxSession, names?: OnnxNames) {
    const { inputNames, outputNames, inputMetadata } = session
    const described = new Map(inputMetadata?.map(input => [input.name, input]))
    this.#inputs = new Map(inputNames.map(name => [name, described.get(name) ?? { name }]))
    const tried = names === undefined ? KNOWN : [names]
    const found = tried.find(one => inputNames.some(name => layerIn(one.pastKey, name) !== undefined))
    if (found === undefined) {
      throw refusedPort(inputNames.join(', '), 'input', `there is no past: none is called ${tried.map(one => one.pastKey).join(' or ')}`)
    }
    this.#check(found)
    const numbers = inputNames.map(name => layerIn(found.pastKey, name)).filter(number => number !== undefined)
    const outputs = new Set(outputNames)
    this.layers = numbers.toSorted((one, other) => one - other).map(number => [
      this.#carried(outputs, named(found.pastKey, number), named(found.presentKey, number)),
      this.#carried(outputs, named(found.pastValue, number), named(found.presentValue, number)),
    ])
  }

  /** Whether the session has an input. */
  has(name: OnnxInputName): boolean {
    return this.#inputs.has(name)
  }

  /** The type of an input's elements; 64-bit integers unless the session says otherwise. */
  typeOf(name: OnnxInputName): string {
    return this.#inputs.get(name)?.type ?? 'int64'
  }

  #check(names: OnnxNames): void {
    if (!this.has('input_ids')) throw refusedPort('input_ids', 'input', 'it is missing')
    for (const name of this.#inputs.keys()) {
      const isPast = layerIn(names.pastKey, name) !== undefined || layerIn(names.pastValue, name) !== undefined
      if (!isPast && !(INPUTS as readonly string[]).includes(name)) throw refusedPort(name, 'input', 'it is not known what it is for')
      if (layerIn(names.pastValue, name) === undefined) continue
      const key = named(names.pastKey, layerIn(names.pastValue, name) as number)
      if (!this.#inputs.has(key)) throw refusedPort(key, 'input', `it is missing beside ${name}`)
    }
  }

  #carried(outputs: ReadonlySet<string>, past: string, present: string): CarriedPort {
    const input = this.#inputs.get(past)
    if (input === undefined) throw refusedPort(past, 'input', 'it is missing')
    if (!outputs.has(present)) throw refusedPort(present, 'output', `it is missing, and ${past} would have nothing to go on with`)
    const rank = input.shape?.length ?? 4
    if (rank !== 4) throw refusedPort(past, 'input', `it has ${rank} dimensions, not batch, heads, rows and elements`)
    const newRows = `kvtide.new.${present}`
    return { past, present, newRows: outputs.has(newRows) ? newRows : undefined, input }
  }
}

/** @internal Templates, each with one `%d`. */
export function readNames(argument: string, value: unknown): OnnxNames {
  const given = known<OnnxNames>(argument, value, NAMES)
  const read = (name: keyof OnnxNames): string => {
    const template = text(`${argument}.${name}`, given[name])
    if (template.split('%d').length !== 2) throw invalid(`${argument}.${name}`, template, 'a name with one %d, for the number of the layer')
    return template
  }
  return { pastKey: read('pastKey'), pastValue: read('pastValue'), presentKey: read('presentKey'), presentValue: read('presentValue') }
}

/** @internal Looks that a value is a session. */
export function readSession(argument: string, value: unknown): OnnxSession {
  const { inputNames, outputNames } = fields<OnnxSession>(argument, value)
  if (!Array.isArray(inputNames) || !Array.isArray(outputNames)) throw invalid(argument, value, 'an InferenceSession of onnxruntime-node')
  return value as OnnxSession
}

function named(template: string, layer: number): string {
  return template.replace('%d', String(layer))
}

/** The layer's number in a name that a template stands for. */
function layerIn(template: string, name: string): number | undefined {
  const [before, behind] = template.split('%d') as [string, string]
  if (!name.startsWith(before) || !name.endsWith(behind)) return undefined
  const digits = name.slice(before.length, name.length - behind.length)
  return /^(0|[1-9]\d{0,8})$/.test(digits) ? Number(digits) : undefined
}
