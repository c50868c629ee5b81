// Runs templates with limits.
//
// A limit of time needs a second thread, which costs milliseconds while all processors are busy. So a template runs without it first, with a number of nodes and with
// a length of values that bound its time; the few that need more run again, with the limit of time.
import vm from 'node:vm'

import { KvTideError, messageOf } from '../errors/errors.js'
import type { JinjaPackage, JinjaValue } from './packages.js'

/** The maximum time that rendering takes, in milliseconds. */
const RENDER_MS = 1000
/** The nodes that a template may evaluate without a limit of time. */
const QUICK_NODES = 20_000
/** The characters of a text, or the elements of a list, that a template may have without a limit of time. */
const QUICK_LENGTH = 2 ** 16
/** The elements of a list that a template may have at all. */
const LIST_MAX = 2 ** 20

/** Ends a run that needs a limit of time. */
class NotQuick extends Error {}

/** @internal Renders a parsed template. */
export function rendered(jinja: JinjaPackage, program: unknown, variables: Readonly<Record<string, unknown>>): string {
  try {
    return run(jinja, program, variables, { nodes: QUICK_NODES, text: QUICK_LENGTH, list: QUICK_LENGTH })
  } catch (cause) {
    if (!(cause instanceof NotQuick)) throw failedTemplate(messageOf(cause), cause)
  }
  return limited(() => run(jinja, program, variables, { nodes: Infinity, text: Infinity, list: LIST_MAX }))
}

interface Most {
  readonly nodes: number
  readonly text: number
  readonly list: number
}

function run(
  { Environment, Interpreter }: JinjaPackage,
  program: unknown,
  variables: Readonly<Record<string, unknown>>,
  most: Most,
): string {
  let nodes = 0
  class Counting extends Interpreter {
    override evaluate(node: unknown, environment: unknown): JinjaValue {
      nodes += 1
      if (nodes > most.nodes) throw new NotQuick()
      const value = super.evaluate(node, environment)
      check(value.value, most)
      return value
    }
  }
  const environment = new Environment()
  for (const [name, value] of Object.entries(variables)) environment.set(name, value)
  return String(new Counting(environment).run(program).value)
}

function check(value: unknown, { text, list }: Most): void {
  if (typeof value === 'string' && value.length > text) throw new NotQuick()
  if (!Array.isArray(value) || value.length <= list) return
  if (text === Infinity) throw new Error(`it made a list of ${value.length} elements, expected at most ${list}`)
  throw new NotQuick()
}

const call = new vm.Script('call()')
/** A context is there for the limit of time only. Making one takes longer than a template. */
let context: { call?: (() => unknown) | undefined } | undefined

/** @internal Runs a function of a template for at most a second. */
export function limited<T>(work: () => T): T {
  context ??= vm.createContext({})
  context.call = work
  try {
    return call.runInContext(context, { timeout: RENDER_MS }) as T
  } catch (cause) {
    const isLate = (cause as { readonly code?: unknown } | null)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
    throw failedTemplate(isLate ? `it ran for more than ${RENDER_MS} ms` : messageOf(cause), cause)
  } finally {
    context.call = undefined
  }
}

/** @internal The error of a template. */
export function failedTemplate(reason: string, cause?: unknown): KvTideError<'TEMPLATE_FAILED'> {
  return new KvTideError(
    'TEMPLATE_FAILED',
    `the chat template failed: ${reason}`,
    { reason },
    cause === undefined ? undefined : { cause },
  )
}
