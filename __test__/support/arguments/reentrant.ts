// Calls whose arguments change or end the object that is called, from getters, in the middle of the call or right after it has returned.
import { types } from 'node:util'

import { isKvTideError } from '../../../index.js'
import { callOf, type Row } from './row.js'

/** Calls that a getter makes on the object, by the first of these members that the object has. */
const ACTIONS: Readonly<Record<string, readonly string[]>> = {
  'dispose of it': ['dispose'],
  'empty it': ['reset', 'truncate', 'rollback', 'forgetPrefixes', 'setLen', 'reclaim'],
  'forget it': ['drop', 'forgetPrefixes', 'commit', 'allocate', 'snapshot'],
}

/** Codes of which none may be the answer of a call, whatever its arguments do. */
const BROKEN = /^(?:INTERNAL|POISONED|CORRUPT|BINDING_\w+)$/

/** The reads of one call after which an action may come. */
const READS_MAX = 16

function act(self: unknown, names: readonly string[]): void {
  const name = names.find(known => typeof (self as Record<string, unknown>)[known] === 'function')
  if (name === undefined) return
  try {
    const answer = (self as Record<string, (length: number) => unknown>)[name]?.(0)
    // The answer of a change in the middle of a call does not matter.
    if (types.isPromise(answer)) answer.catch(() => {})
  } catch (error) {
    if (!isKvTideError(error) || BROKEN.test(error.code)) throw error
  }
}

const isPlain = (value: unknown): value is object =>
  typeof value === 'object' &&
  value !== null &&
  (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype)

/** Counts reads of an object and of the objects in it, and calls `at` before each. */
function watched<T extends object>(value: T, at: () => void): T {
  return new Proxy(value, {
    get: (target, key) => {
      at()
      const found = Reflect.get(target, key) as unknown
      return isPlain(found) ? watched(found, at) : found
    },
  })
}

/** The end of a call: `ok` or a code; anything else is a defect. */
async function ended(call: () => unknown): Promise<string> {
  try {
    await call()
    return 'ok'
  } catch (error) {
    return isKvTideError(error) ? error.code : `an error without a code: ${String(error)}`
  }
}

/** Reads what is left of an object: no read may find it broken. */
async function sound(self: unknown): Promise<string> {
  for (const name of ['checkInvariants', 'stats', 'kv', 'getKv', 'currentData', 'toArray', 'length']) {
    const answer = await ended(() => {
      const member = (self as Record<string, unknown>)[name]
      return typeof member === 'function' ? (Reflect.apply(member, self, [0]) as unknown) : member
    })
    if (BROKEN.test(answer)) return `${name}: ${answer}`
  }
  return ''
}

/** Makes every call of every row with arguments that act in the middle of it. */
export async function reentrant(rows: readonly Row[]): Promise<{ count: number; acted: number; wrong: string[] }> {
  const result = { count: 0, acted: 0, wrong: [] as string[] }
  const check = async (what: string, self: unknown, call: () => unknown): Promise<string> => {
    result.count += 1
    const end = await ended(call)
    if (BROKEN.test(end) || end.startsWith('an error')) result.wrong.push(`${what}: ${end}`)
    const broken = await sound(self)
    if (broken !== '') result.wrong.push(`${what}, afterwards: ${broken}`)
    return end
  }
  for (const row of rows.filter(({ name }) => name.includes('#'))) {
    for (const [action, names] of Object.entries(ACTIONS)) {
      for (const place of row.params.keys()) await actWithin(row, place, action, names, check, result)
      const self = row.self()
      const args = row.params.map(({ valid }) => valid(self as never))
      await check(`${row.name}, then ${action}`, self, () => {
        const answer = callOf(row)(self, args)
        act(self, names)
        return answer
      })
    }
  }
  return result
}

async function actWithin(
  row: Row,
  place: number,
  action: string,
  names: readonly string[],
  check: (what: string, self: unknown, call: () => unknown) => Promise<string>,
  result: { acted: number },
): Promise<void> {
  for (let after = 0; after < READS_MAX; after++) {
    const self = row.self()
    const args = row.params.map(({ valid }) => valid(self as never))
    const given = args[place]
    if (!isPlain(given)) return
    let [reads, hasActed] = [0, false]
    args[place] = watched(given, () => {
      if (reads++ !== after) return
      hasActed = true
      act(self, names)
    })
    await check(`${row.name}: read ${after} of ${row.params[place]?.name} does ${action}`, self, () =>
      callOf(row)(self, args),
    )
    if (!hasActed) return
    result.acted += 1
  }
}
