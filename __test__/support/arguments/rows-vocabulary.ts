import { Vocabulary } from '../../../onnx.js'
import { count, never, optional, tokenIds } from './kinds.js'
import { free, Members, param, type Row } from './row.js'
import { some } from './rows-contiguous.js'

const letters = (): Vocabulary => Vocabulary.ofTokens(['a', 'b', 'c', 'd'])
const endOfSequence = optional(tokenIds)

const vocabularies = new Members('Vocabulary', letters)
  .special(
    'bytesOf',
    { disposed: 'ok', foreign: 'INVALID_ARGUMENT' },
    param('id', count, () => 1),
  )
  .special(
    'isSpecial',
    { disposed: 'ok', foreign: 'INVALID_ARGUMENT' },
    param('id', count, () => 1),
  )

/** The rows of `Vocabulary`, which several entry points export. */
export const vocabularyRows: readonly Row[] = [
  free(
    'new Vocabulary',
    param('token', never, () => undefined),
    param('inner', never, () => undefined),
  ),
  free(
    'Vocabulary.ofTokens',
    param('tokens', { legal: {} }, () => ['a', 'b']),
    some({ endOfSequence }),
  ),
  free(
    'Vocabulary.load',
    param('tokenizer', { legal: { '"3"': 'IO_ERROR' } }, () => ({ model: { vocab: { a: 0 } } })),
    some({ size: optional(count), endOfSequence }),
  ),
  ...vocabularies.rows,
]
