// The text that the chat server of examples/ sends while ids arrive: all pieces together equal the text of all ids at once.
import test from 'ava'
import fc from 'fast-check'

import { bytes, type TextCodec, TextStream } from '../../examples/server/text.js'
import { check } from '../support/seeded.js'

/** The pieces of a stream; the last one is returned at its end. */
function piecesOf(
  codec: TextCodec,
  ids: readonly number[],
  stops: readonly string[] = [],
): { pieces: string[]; ended: boolean } {
  const stream = new TextStream(codec, stops)
  const pieces = ids.map(id => stream.push(id))
  return { pieces: [...pieces, stream.flush()], ended: stream.ended }
}

test('text of a stream is held back where it may be the start of a stop text', t => {
  const stream = new TextStream(bytes, ['stop!', 'op'])
  const ids = bytes.encode('a st é sto')
  t.is(ids.map(id => stream.push(id)).join(''), 'a st é ')
  t.is(
    bytes
      .encode('p and more')
      .map(id => stream.push(id))
      .join(''),
    'st',
  )
  t.true(stream.ended)
  t.is(stream.flush(), '')
})

test('half a character waits for its other half', t => {
  t.deepEqual(piecesOf(bytes, bytes.encode('é!')).pieces, ['', 'é', '!', ''])
  t.deepEqual(piecesOf(bytes, bytes.encode('😀')).pieces, ['', '', '', '😀', ''])
})

test('a character that does not come whole is told at the end, once', t => {
  for (const [text, missing] of [
    ['é', 1],
    ['€', 1],
    ['€', 2],
    ['😀', 1],
    ['😀', 2],
    ['😀', 3],
  ] as const) {
    t.is(piecesOf(bytes, bytes.encode(`a${text}`).slice(0, -missing)).pieces.join(''), 'a\uFFFD')
  }
  t.is(piecesOf(bytes, bytes.encode('é').slice(0, 1), ['\uFFFD']).pieces.join(''), '')
  t.is(piecesOf(bytes, bytes.encode('sto'), ['stop']).pieces.join(''), 'sto')
})

test('ids without a text inside a character do not end it', t => {
  const [a, b, c, d] = bytes.encode('😀') as [number, number, number, number]
  const nothing = Array.from({ length: 100 }, (_, at) => [0, 1, 259, 300][at % 4] as number)
  t.is(
    piecesOf(bytes, [...nothing, a, ...nothing, b, ...nothing, c, ...nothing, d, ...nothing, 3 + 33]).pieces.join(''),
    '😀!',
  )
  t.is(piecesOf(bytes, [a, b, ...nothing]).pieces.join(''), '\uFFFD')
})

test('bytes that make no character are told soon, and cost no more the more there are', t => {
  let longest = 0
  const counting: TextCodec = {
    ...bytes,
    decode: ids => {
      longest = Math.max(longest, ids.length)
      return bytes.decode(ids)
    },
  }
  const ids = Array.from({ length: 5000 }, () => 3 + 0xff)
  const { pieces } = piecesOf(counting, [...ids, ...bytes.encode('😀')])
  t.is(pieces.join(''), `${'\uFFFD'.repeat(5000)}😀`)
  t.true(pieces.slice(0, 10).join('').length >= 7)
  t.true(longest < 200, `${longest}`)
})

/** Tokens of several bytes that begin and end anywhere, even inside characters, and ids without text. */
const PIECES: readonly (readonly number[])[] = [
  ...Array.from({ length: 256 }, (_, byte) => [byte]),
  ...['he', ' the', 'é', '€', '😀', 'a😀b', '\uFFFD', '\u0000', '\uFEFF'].map(text => [
    ...new TextEncoder().encode(text),
  ]),
  [0xf0, 0x9f],
  [0x98, 0x80],
  [0x9f, 0x98, 0x80, 0x61],
  [0x20, 0xf0],
  [0xe2, 0x82],
  [0xac, 0xe2],
  [0xff, 0xf0],
  [0xc3],
  [],
  [],
]

/** Decodes like byte-level tokenizers: all bytes together. */
const byteLevel: TextCodec = {
  encodeChat: () => [],
  encode: () => [],
  decode: ids =>
    new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(ids.flatMap(id => PIECES[id] as number[]))),
  stop: [],
}

/** Decodes like SentencePiece: bytes that form no character become one replacement character each, and a space at the start is dropped. */
const fallback: TextCodec = {
  ...byteLevel,
  decode: ids => {
    const texts: string[] = []
    let run: number[] = []
    const end = (): void => {
      const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(run))
      texts.push(text.includes('\uFFFD') ? '\uFFFD'.repeat(run.length) : text)
      run = []
    }
    for (const id of ids) {
      if (id < 256) run.push(id)
      else {
        end()
        texts.push(['', ' a', ' ', 'b', ' é'][id % 5] as string)
      }
    }
    end()
    return texts.join('').replace(/^ /, '')
  },
}

const idOf = fc.oneof(
  { weight: 3, arbitrary: fc.integer({ min: 256, max: PIECES.length - 1 }) },
  { weight: 1, arbitrary: fc.integer({ min: 0, max: 255 }) },
)
const characters = fc.string({ unit: 'binary', maxLength: 3 }).map(text => [...new TextEncoder().encode(text)])
const idsOf = fc
  .array(
    fc.oneof(
      idOf.map(id => [id]),
      characters,
    ),
    { maxLength: 40 },
  )
  .map(parts => parts.flat())

test('all pieces together are the text of all ids: bytes in any order', t => {
  check(
    t,
    fc.array(
      fc.oneof(
        { weight: 3, arbitrary: characters },
        { weight: 1, arbitrary: fc.array(fc.integer({ min: -3, max: 300 }), { maxLength: 3 }) },
      ),
    ),
    parts => {
      const ids = parts.flat().map(byte => byte + 3)
      const { pieces } = piecesOf(bytes, ids)
      t.is(pieces.join(''), bytes.decode(ids))
      // No piece ends or begins with half of a surrogate pair.
      for (const piece of pieces) t.notRegex(piece, /[\uD800-\uDBFF]$|^[\uDC00-\uDFFF]/)
    },
  )
})

test('all pieces together are the text of all ids: tokens that end inside characters', t => {
  check(t, idsOf, ids => t.is(piecesOf(byteLevel, ids).pieces.join(''), byteLevel.decode(ids)))
})

test('all pieces together are the text of all ids: characters of single bytes between words', t => {
  const character = fc
    .string({ unit: 'binary', minLength: 1, maxLength: 1 })
    .map(text => [...new TextEncoder().encode(text)])
  const word = fc.integer({ min: 256, max: 265 }).map(id => [id])
  check(t, fc.array(fc.oneof(character, word)), parts => {
    const ids = parts.flat()
    t.is(piecesOf(fallback, ids).pieces.join(''), fallback.decode(ids))
    // Ids cut inside the last character give all characters before it, and replacement characters.
    const cut = ids.slice(0, -1)
    const text = piecesOf(fallback, cut).pieces.join('')
    t.true(
      text.replace(/\uFFFD{0,3}$/, '') === fallback.decode(ids.slice(0, ids.length - (parts.at(-1)?.length ?? 0))),
      text,
    )
  })
})

test('a stop text is found wherever tokens end, and nothing behind it is told', t => {
  check(t, fc.tuple(idsOf, fc.integer({ min: 0, max: 60 }), fc.integer({ min: 1, max: 4 })), ([ids, at, length]) => {
    const whole = byteLevel.decode(ids)
    const stop = [...whole].slice(at, at + length).join('')
    if (stop === '') return
    const { pieces, ended } = piecesOf(byteLevel, ids, [stop])
    t.true(ended)
    t.is(pieces.join(''), whole.slice(0, whole.indexOf(stop)))
  })
})
