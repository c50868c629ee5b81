// A vocabulary for the models of the fixtures, whose tokens mean nothing: 3 special tokens, all bytes, and words.
import { Vocabulary } from '../../../onnx.js'

/** The number of ids in the models of the fixtures. */
export const SIZE = 320
/** The token that ends a text. */
export const END = 2
const FIRST_BYTE = 3

const WORDS = [
  '{"',
  '"}',
  '":',
  '": ',
  '","',
  ', ',
  '},{',
  '[{',
  '}]',
  'true',
  'false',
  'null',
  '12',
  '0.5',
  '-1',
  'name',
  'age',
  'tags',
  'red',
  'green',
  'é',
  '日本',
  'the ',
  'abc',
  '  ',
]

const bytes = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte))

/** The vocabulary, with ids up to {@link SIZE}. */
export const vocabulary: Vocabulary = Vocabulary.ofTokens(
  Array.from({ length: SIZE }, (_, id) =>
    id < FIRST_BYTE ? `<${id}>` : (bytes[id - FIRST_BYTE] ?? WORDS[id - FIRST_BYTE - 256]),
  ),
  { endOfSequence: [END] },
)

/** The text of tokens. */
export function textOf(tokens: readonly number[], of: Vocabulary = vocabulary): string {
  return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(tokens.map(token => of.bytesOf(token))))
}

/** A schema that is short enough for models that know nothing. */
export const SCHEMA = {
  type: 'object',
  properties: {
    name: { type: 'string', maxLength: 6 },
    tags: { type: 'array', items: { enum: ['red', 'green'] }, maxItems: 3 },
    age: { type: 'integer', minimum: 0, maximum: 120 },
  },
  required: ['name', 'tags', 'age'],
  additionalProperties: false,
  'x-guidance': { whitespace_flexible: false },
} as const

interface Document {
  readonly name: string
  readonly tags: readonly string[]
  readonly age: number
}

/** True if a text is a document of {@link SCHEMA}. */
export function isDocument(text: string): boolean {
  const value = JSON.parse(text) as Document
  const { name, tags, age } = value
  return (
    Object.keys(value).join() === 'name,tags,age' &&
    typeof name === 'string' &&
    Array.from(name).length <= 6 &&
    tags.length <= 3 &&
    tags.every(tag => tag === 'red' || tag === 'green') &&
    Number.isInteger(age) &&
    age >= 0 &&
    age <= 120
  )
}
