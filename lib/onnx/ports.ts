// The inputs and outputs of a session, and their purposes. They are recognised by name, never by place, because exporters order them differently. Every input must
// be known: leaving one out or guessing its value would give wrong results.
import { fields, known, type Names, text } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { refusedPort } from './refused-node.js'
import type { OnnxInput } from './session-input.js'
import { readStateNames, type StateNames, type StatePort, statePorts } from './state-ports.js'

export type { OnnxInput } from './session-input.js'

/** A session of onnxruntime-node: the members that are used here. */
export interface OnnxSession {
  readonly inputNames: readonly string[]
  readonly outputNames: readonly string[]
  /** Types and dimensions. Older versions of onnxruntime-node do not have them. */
  readonly inputMetadata?: readonly OnnxInput[]
}

/** The names of pasts and presents. `%d` stands for the layer's number. */
export interface OnnxNames {
  readonly pastKey: string
  readonly pastValue: string
  readonly presentKey: string
  readonly presentValue: string
  /** The states that layers have in place of keys and values, or beside them, with `%s` for the name of the tensor: `past_%s.%d`. Requires `presentStates`. */
  readonly pastStates?: string
  /** The new states: `present_%s.%d`. */
  readonly presentStates?: string
}

const NAMES: Names<OnnxNames> = {
  pastKey: 0,
  pastValue: 0,
  presentKey: 0,
  presentValue: 0,
  pastStates: 0,
  presentStates: 0,
}

/** The names of a decoder with an encoder: its own keys and values, beside those of the encoder's states, which are named `encoder` instead of `decoder`. */
const DECODER: OnnxNames = {
  pastKey: 'past_key_values.%d.decoder.key',
  pastValue: 'past_key_values.%d.decoder.value',
  presentKey: 'present.%d.decoder.key',
  presentValue: 'present.%d.decoder.value',
}

/** The same in the form of onnxruntime-genai's builder, whose encoder gives its keys and values itself: they are named `cross` instead of `self`. */
const SELF: OnnxNames = {
  pastKey: 'past_key_self_%d',
  pastValue: 'past_value_self_%d',
  presentKey: 'present_key_self_%d',
  presentValue: 'present_value_self_%d',
}

/** In the names of both: a decoder's own keys and values, and those of its encoder. */
const SIDES = new Map<OnnxNames, readonly [own: string, cross: string]>([
  [DECODER, ['.decoder.', '.encoder.']],
  [SELF, ['_self_', '_cross_']],
])

/** The names that exporters use. */
const KNOWN: readonly OnnxNames[] = [
  DECODER,
  SELF,
  {
    pastKey: 'past_key_values.%d.key',
    pastValue: 'past_key_values.%d.value',
    presentKey: 'present.%d.key',
    presentValue: 'present.%d.value',
  },
  {
    pastKey: 'past_key_%d',
    pastValue: 'past_value_%d',
    presentKey: 'present_key_%d',
    presentValue: 'present_value_%d',
  },
  {
    pastKey: 'past.%d.key',
    pastValue: 'past.%d.value',
    presentKey: 'present.%d.key',
    presentValue: 'present.%d.value',
  },
]

/** @internal The inputs with the number of last tokens whose logits are wanted; 0 stands for all. */
export const LOGITS_TO_KEEP = ['num_logits_to_keep', 'logits_to_keep'] as const

/** The inputs besides pasts. */
const INPUTS = [
  'input_ids',
  'attention_mask',
  'position_ids',
  'use_cache_branch',
  'num_logits_to_keep',
  'logits_to_keep',
  'kvtide.new_rows',
] as const

/** The inputs of a session without pasts that its error names. */
const INPUTS_SHOWN = 3

/** The inputs that only a decoder with an encoder has. */
const ENCODED = ['encoder_hidden_states', 'encoder_attention_mask'] as const

/** The keys and values of an encoder in forms of decoders that are not merged: `past_key_cross_0` of onnxruntime-genai's builder, `past_key_values.0.cross.key` of mobius. */
const OTHER_CROSS = /(?:_cross_\d+|\.cross\.(?:key|value))$/

/** @internal True for an input that only a decoder with an encoder has, in any form. */
export const isOfEncoder = (name: string): boolean =>
  name === 'encoder_hidden_states' || /\.encoder\.(?:key|value)$/.test(name) || OTHER_CROSS.test(name)

/** The name of an input that is not a past. */
export type OnnxInputName = (typeof INPUTS)[number] | (typeof ENCODED)[number]

/** The keys or the values of a layer. */
export interface CarriedPort {
  readonly past: string
  readonly present: string
  /** The output with only the new rows, if the session has it. */
  readonly newRows: string | undefined
  /** The session's description of the past. */
  readonly input: OnnxInput
}

/** The keys and the values of a layer, by the layer's number in the names. */
export type LayerPorts = readonly [key: CarriedPort, value: CarriedPort]

/** Keys or values of the encoder's states in one layer. A call without them returns them, or the encoder does. */
export type CrossPort = Omit<CarriedPort, 'newRows'>

/** @internal The purpose of each input and output of a session. */
export class OnnxPorts {
  /** The layers with keys and values, in the order of their numbers. */
  readonly layers: readonly LayerPorts[]
  /** The number of each of these layers in the names. */
  readonly numbers: readonly number[]
  /** The states of layers, in the order of the layers' numbers. */
  readonly states: readonly StatePort[]
  /** The keys and values of the encoder's states, in all layers; empty for a model without an encoder. */
  readonly cross: readonly CrossPort[]
  /** True if the encoder gives these keys and values; otherwise the decoder computes them of its states. */
  readonly isCrossGiven: boolean
  readonly #inputs: ReadonlyMap<string, OnnxInput>

  /** `given` are the inputs that a model of embeddings gives. */
  constructor(session: OnnxSession, names?: OnnxNames, given: readonly string[] = []) {
    const { inputNames, outputNames, inputMetadata } = session
    const described = new Map(inputMetadata?.map(input => [input.name, input]))
    this.#inputs = new Map(inputNames.map(name => [name, described.get(name) ?? { name }]))
    const tried = names === undefined ? KNOWN : [names]
    const found = tried.find(one => inputNames.some(name => layerIn(one.pastKey, name) !== undefined))
    this.states = statePorts(
      { inputs: this.#inputs, outputs: outputNames, isKeyOrValue: name => found !== undefined && isOf(found, name) },
      statesOf(names),
    )
    if (found === undefined && this.states.length === 0) throw this.#withoutPast(tried)
    const own = found ?? (tried[0] as OnnxNames)
    this.#check(own, given)
    const numbers = inputNames.map(name => layerIn(own.pastKey, name)).filter(number => number !== undefined)
    const outputs = new Set(outputNames)
    this.numbers = numbers.toSorted((one, other) => one - other)
    this.layers = this.numbers.map(number => [
      this.#carried(outputs, named(own.pastKey, number), named(own.presentKey, number)),
      this.#carried(outputs, named(own.pastValue, number), named(own.presentValue, number)),
    ])
    this.isCrossGiven = found === SELF
    this.cross = found === undefined ? [] : this.#cross(found, outputs)
  }

  /** The error for a session without pasts. */
  #withoutPast(tried: readonly OnnxNames[]): Error {
    const names = [...this.#inputs.keys()]
    const other = names.find(name => OTHER_CROSS.test(name))
    if (other !== undefined)
      return refusedPort(
        other,
        'input',
        'this form of a decoder is not known; optimum-onnx exports a known one',
        'encoder',
      )
    if (this.has('encoder_hidden_states'))
      return refusedPort('encoder_hidden_states', 'input', 'it has no past', 'encoder')
    const rest = names.length - INPUTS_SHOWN
    return refusedPort(
      `${names.slice(0, INPUTS_SHOWN).join(', ')}${rest > 0 ? ` and ${rest} more` : ''}`,
      'input',
      `no input is a past: expected names like ${tried.map(one => one.pastKey).join(' or ')}`,
      'past',
    )
  }

  #cross(names: OnnxNames, outputs: ReadonlySet<string>): CrossPort[] {
    const sides = SIDES.get(names)
    if (sides === undefined) return []
    for (const name of ['encoder_hidden_states', 'use_cache_branch'] as const)
      if (!this.isCrossGiven && !this.has(name)) throw refusedPort(name, 'input', 'it is missing', 'encoder')
    return this.layers.flat().map(({ past, present }) => {
      const [input, output] = [past, present].map(name => name.replace(...sides)) as [string, string]
      // An output of the encoder is none of this session.
      const { input: described } = this.#carried(this.isCrossGiven ? new Set([output]) : outputs, input, output)
      return { past: input, present: output, input: described }
    })
  }

  /** The size of an axis of an input, if the session declares it. */
  sizeOf(name: OnnxInputName, axis: number): number | undefined {
    const size = this.#inputs.get(name)?.shape?.[axis]
    return typeof size === 'number' && size > 0 ? size : undefined
  }

  /** The number of dimensions of an input, if the session declares them. */
  rankOf(name: OnnxInputName): number | undefined {
    return this.#inputs.get(name)?.shape?.length
  }

  /** True if the session has an input. */
  has(name: OnnxInputName): boolean {
    return this.#inputs.has(name)
  }

  /** The element type of an input; 64-bit integers if the session does not declare it. */
  typeOf(name: OnnxInputName): string {
    return this.#inputs.get(name)?.type ?? 'int64'
  }

  #check(names: OnnxNames, given: readonly string[]): void {
    if (!this.has('input_ids') && !given.includes('inputs_embeds'))
      throw refusedPort('input_ids', 'input', 'it is missing')
    const states = this.states.map(({ past }) => past)
    const others = new Set<string>([...INPUTS, ...(names === DECODER ? ENCODED : given), ...states])
    const [side = '', other = ''] = SIDES.get(names) ?? []
    for (const input of this.#inputs.keys()) {
      const name = input.replace(other, side)
      const isPast = layerIn(names.pastKey, name) !== undefined || layerIn(names.pastValue, name) !== undefined
      if (!isPast && !others.has(name))
        throw refusedPort(
          input,
          'input',
          'its purpose is not known',
          input === 'inputs_embeds' ? 'embeddings' : 'input',
        )
      if (layerIn(names.pastValue, name) === undefined) continue
      const key = named(names.pastKey, layerIn(names.pastValue, name) as number)
      if (!this.#inputs.has(key)) throw refusedPort(key, 'input', `it is missing, but there is ${name}`)
    }
  }

  #carried(outputs: ReadonlySet<string>, past: string, present: string): CarriedPort {
    const input = this.#inputs.get(past)
    if (input === undefined) throw refusedPort(past, 'input', 'it is missing')
    if (!outputs.has(present)) throw refusedPort(present, 'output', `it is missing, but ${past} needs it`)
    const rank = input.shape?.length ?? 4
    if (rank !== 4)
      throw refusedPort(past, 'input', `it has ${rank} dimensions, expected 4: batch, heads, rows and elements`)
    const newRows = `kvtide.new.${present}`
    return { past, present, newRows: outputs.has(newRows) ? newRows : undefined, input }
  }
}

/** @internal Reads name templates, each with one `%d`. */
export function readNames(argument: string, value: unknown): OnnxNames {
  const given = known<OnnxNames>(argument, value, NAMES)
  const read = (name: keyof typeof NAMES): string => {
    const template = text(`${argument}.${name}`, given[name])
    if (template.split('%d').length !== 2)
      throw invalid(`${argument}.${name}`, template, 'a name with one %d, for the number of the layer')
    return template
  }
  const names = {
    pastKey: read('pastKey'),
    pastValue: read('pastValue'),
    presentKey: read('presentKey'),
    presentValue: read('presentValue'),
  }
  const { pastStates, presentStates } = given
  if (pastStates === undefined && presentStates === undefined) return names
  const states = readStateNames(argument, pastStates, presentStates)
  return { ...names, pastStates: states.past, presentStates: states.present }
}

/** The templates of states that a caller has passed. */
function statesOf({ pastStates, presentStates }: Partial<OnnxNames> = {}): StateNames | undefined {
  return pastStates === undefined || presentStates === undefined
    ? undefined
    : { past: pastStates, present: presentStates }
}

/** True for a name of a past or present of keys and values. */
function isOf({ pastKey, pastValue, presentKey, presentValue }: OnnxNames, name: string): boolean {
  return [pastKey, pastValue, presentKey, presentValue].some(template => layerIn(template, name) !== undefined)
}

/** @internal Checks that a value is a session. */
export function readSession(argument: string, value: unknown): OnnxSession {
  const { inputNames, outputNames } = fields<OnnxSession>(argument, value)
  if (!Array.isArray(inputNames) || !Array.isArray(outputNames))
    throw invalid(argument, value, 'an InferenceSession of onnxruntime-node')
  return value as OnnxSession
}

function named(template: string, layer: number): string {
  return template.replace('%d', String(layer))
}

/** The layer's number in a name, if it matches the template. */
function layerIn(template: string, name: string): number | undefined {
  const [before, behind] = template.split('%d') as [string, string]
  if (!name.startsWith(before) || !name.endsWith(behind)) return undefined
  const digits = name.slice(before.length, name.length - behind.length)
  return /^(0|[1-9]\d{0,8})$/.test(digits) ? Number(digits) : undefined
}
