import fc from 'fast-check'

/** Values that a reader of JSON may not expect. */
const ODD: readonly unknown[] = [
  null,
  true,
  0,
  -1,
  0.5,
  2 ** 31,
  2 ** 53,
  1e308,
  '',
  'text',
  '\ud800',
  '\u0000',
  '{{',
  [],
  [null],
  {},
  { type: 'text' },
  { toString: 1, valueOf: null },
  [[[[[[]]]]]],
]
/** Names of fields that mean something to JavaScript. */
const NAMES: readonly string[] = [
  '__proto__',
  'constructor',
  'toString',
  'length',
  'then',
  'type',
  'role',
  'content',
  '',
]

interface Change {
  /** The place of the change among all places of the value. */
  readonly place: number
  readonly odd: number
  readonly kind: 'replace' | 'remove' | 'add' | 'repeat'
  readonly name: number
}

const change: fc.Arbitrary<Change> = fc.record({
  place: fc.nat(1000),
  odd: fc.nat(ODD.length - 1),
  kind: fc.constantFrom('replace', 'remove', 'add', 'repeat'),
  name: fc.nat(NAMES.length - 1),
})

type Container = Record<string, unknown> | unknown[]

/** All containers of a value, with the keys of their entries. */
function* places(value: unknown): Generator<[of: Container, key: string]> {
  if (typeof value !== 'object' || value === null) return
  const of = value as Container
  for (const key of Object.keys(of)) {
    yield [of, key]
    yield* places((of as Record<string, unknown>)[key])
  }
}

/** Draws JSON values that differ from one of `values` in a few places. Each is new, as a parser makes it. */
export function mutated(...values: readonly object[]): fc.Arbitrary<unknown> {
  const drawn = fc.tuple(fc.constantFrom(...values), fc.array(change, { minLength: 1, maxLength: 5 }))
  return drawn.map(([value, changes]) => {
    const root = { value: JSON.parse(JSON.stringify(value)) as unknown }
    for (const { place, odd, kind, name } of changes) {
      const all = [...places(root)]
      const [of, key] = all[place % all.length] as [Container, string]
      const fields = of as Record<string, unknown>
      if (kind === 'replace') fields[key] = structuredClone(ODD[odd])
      else if (kind === 'remove' && key !== 'value') delete fields[key]
      else if (kind === 'repeat' && Array.isArray(of)) of.push(...Array.from({ length: 9 }, () => fields[key]))
      else if (!Array.isArray(of))
        Object.defineProperty(of, NAMES[name] as string, {
          value: structuredClone(ODD[odd]),
          enumerable: true,
          configurable: true,
          writable: true,
        })
    }
    return JSON.parse(JSON.stringify(root.value ?? null)) as unknown
  })
}

/** Draws texts that differ from one of `texts`: pieces are removed, repeated, or replaced with one of `tokens`. */
export function mutatedText(texts: readonly string[], tokens: readonly string[]): fc.Arbitrary<string> {
  const edit = fc.tuple(fc.nat(10_000), fc.nat(12), fc.option(fc.constantFrom(...tokens)), fc.boolean())
  return fc.tuple(fc.constantFrom(...texts), fc.array(edit, { minLength: 1, maxLength: 6 })).map(([text, edits]) =>
    edits.reduce((left, [from, count, token, repeats]) => {
      const at = from % (left.length + 1)
      const piece = left.slice(at, at + count)
      return left.slice(0, at) + (token ?? (repeats ? piece + piece : '')) + left.slice(at + count)
    }, text),
  )
}
