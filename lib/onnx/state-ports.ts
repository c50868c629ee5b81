// The states among the inputs and outputs of a session: tensors of a fixed size that a layer keeps for a sequence, in place of keys and values or beside them.
//
//     past_conv.3                      -> the last columns before a short convolution   -> present_conv.3
//     past_key_values.3.recurrent_state -> the sum of a linear recurrence               -> present.3.recurrent_state
//
// Each is read at the start of a call and returned at its end. They are recognised by name, like pasts, and a state counts only as a pair of an input and an output.
import { text } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import type { StateTensor } from '../sequences/model-description.js'
import { refusedPort } from './refused-node.js'
import type { OnnxInput } from './session-input.js'

/** Templates of the names of states: `%d` stands for the layer's number, `%s` for the tensor's name. */
export interface StateNames {
  readonly past: string
  readonly present: string
}

/** The names that exporters use. */
const KNOWN: readonly StateNames[] = [
  { past: 'past_%s.%d', present: 'present_%s.%d' },
  { past: 'past_key_values.%d.%s', present: 'present.%d.%s' },
  { past: 'past.%d.%s', present: 'present.%d.%s' },
  { past: 'past_states.%d.%s', present: 'present.%d.%s' },
]

/** The names of tensors that exporters use. */
const TENSORS = /^(conv|ssm|recurrent)(_state)?$/

/** The element types of states, by onnxruntime's names. */
const DTYPES: Readonly<Record<string, 'f32' | 'f16'>> = { float32: 'f32', float16: 'f16' }

/** A state of a layer. */
export interface StatePort {
  /** The layer's number in the names. */
  readonly layer: number
  /** The tensor's name: `conv`, `ssm`, `recurrent`, or what stands for `%s` in a template of the caller's. */
  readonly name: string
  readonly past: string
  readonly present: string
  /** The session's description of the past. */
  readonly input: OnnxInput
}

/** A name that matches a template. */
interface Matched {
  readonly layer: number
  readonly tensor: string
}

/** @internal The inputs and outputs of a session, and the names of its keys and values. */
export interface NamedPorts {
  readonly inputs: ReadonlyMap<string, OnnxInput>
  readonly outputs: readonly string[]
  /** True for names of pasts and presents of keys and values. */
  readonly isKeyOrValue: (name: string) => boolean
}

/** @internal The states of a session, by layer and name. Refused if an input has no output, or an output no input. */
export function statePorts({ inputs, outputs, isKeyOrValue }: NamedPorts, names?: StateNames): StatePort[] {
  const tried = names === undefined ? KNOWN : [names]
  const isState = ({ tensor }: Matched): boolean => names !== undefined || TENSORS.test(tensor)
  const returned = new Set(outputs)
  const found: StatePort[] = []
  for (const [past, input] of inputs) {
    if (isKeyOrValue(past)) continue
    for (const { past: template, present: other } of tried) {
      const matched = matchOf(template, past)
      if (matched === undefined || !isState(matched)) continue
      const present = named(other, matched)
      if (!returned.has(present)) throw refusedPort(present, 'output', `it is missing, but ${past} needs it`)
      const { layer, tensor } = matched
      found.push(checked({ layer, name: tensor.replace(/_state$/, ''), past, present, input }))
      break
    }
  }
  for (const output of outputs) {
    if (isKeyOrValue(output) || found.some(({ present }) => present === output)) continue
    for (const { past: template, present: other } of tried) {
      const matched = matchOf(other, output)
      if (matched === undefined || !isState(matched)) continue
      throw refusedPort(named(template, matched), 'input', `it is missing, but there is ${output}`)
    }
  }
  found.sort((one, other) => one.layer - other.layer || (one.name < other.name ? -1 : 1))
  for (const [at, { layer, name, past }] of found.entries()) {
    const before = found[at - 1]
    if (before?.layer === layer && before.name === name)
      throw refusedPort(past, 'input', `it is the same state as ${before.past}`)
  }
  return found
}

/** @internal The tensor of a state. `undefined` if the session does not describe its inputs. */
export function tensorOf({ name, past, input: { type, shape } }: StatePort): StateTensor | undefined {
  if (type === undefined || shape === undefined) return undefined
  const dtype = DTYPES[type]
  if (dtype === undefined) throw refusedPort(past, 'input', `its type is ${type}, expected float32 or float16`, 'type')
  return { name, shape: shape.slice(1) as readonly number[], dtype }
}

/** @internal Reads templates of names, each with one `%d` and one `%s`. */
export function readStateNames(argument: string, past: unknown, present: unknown): StateNames {
  const read = (field: string, given: unknown): string => {
    const template = text(`${argument}.${field}`, given)
    if (template.split('%d').length === 2 && template.split('%s').length === 2) return template
    const expected = 'a name with one %d, for the number of the layer, and one %s, for the name of the tensor'
    throw invalid(`${argument}.${field}`, template, expected)
  }
  return { past: read('pastStates', past), present: read('presentStates', present) }
}

/** Refuses a state whose size is not fixed. Its first axis is the batch, which has one sequence. */
function checked(port: StatePort): StatePort {
  const {
    past,
    input: { shape },
  } = port
  if (shape === undefined) return port
  const [batch, ...sizes] = shape
  const dims = `its dimensions are [${shape.join(', ')}]`
  if (sizes.length === 0) throw refusedPort(past, 'input', `${dims}, expected the batch and at least one more`, 'form')
  if (typeof batch === 'number' && batch > 1)
    throw refusedPort(past, 'input', `${dims}, expected the batch, or 1, at the start`, 'form')
  if (sizes.some(size => typeof size !== 'number' || size < 1))
    throw refusedPort(past, 'input', `${dims}, expected fixed sizes behind the batch`, 'form')
  return port
}

function named(template: string, { layer, tensor }: Matched): string {
  return template.replace('%d', String(layer)).replace('%s', () => tensor)
}

const PATTERNS = new Map<string, RegExp>()

/** The layer and the tensor in a name, if it matches the template. */
function matchOf(template: string, name: string): Matched | undefined {
  const pattern = PATTERNS.get(template) ?? patternOf(template)
  PATTERNS.set(template, pattern)
  const { layer, tensor } = pattern.exec(name)?.groups ?? {}
  return layer === undefined ? undefined : { layer: Number(layer), tensor: tensor as string }
}

function patternOf(template: string): RegExp {
  const parts = template.split(/(%[ds])/).map(part => {
    if (part === '%d') return String.raw`(?<layer>0|[1-9]\d{0,8})`
    if (part === '%s') return String.raw`(?<tensor>[A-Za-z_]\w*)`
    return part.replaceAll(/[\\^$.*+?()[\]{}|]/g, String.raw`\$&`)
  })
  return new RegExp(`^${parts.join('')}$`)
}
