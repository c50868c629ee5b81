// Corrections of `@huggingface/tokenizers` 0.2, where it splits text otherwise than the tokenizers of Hugging Face in Rust:
//
// - `Digits` splits at decimal digits alone. In Rust, every number counts: `½`, `²`, `Ⅷ`.
// - The expression of `ByteLevel` takes U+FEFF for a space, and U+0085 for none.
//
// The description of the tokenizer is changed before it is passed on, so a later version that has corrected them gives the same ids.
import { type Fields, isFields } from './files.js'

/** The expression of GPT-2. The package corrects the classes of an expression that it is given. */
const WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

/** @internal The description of a tokenizer, so that the package splits text as in Rust. */
export function corrected(tokenizer: Fields): Fields {
  return { ...tokenizer, pre_tokenizer: correctedSplit(tokenizer['pre_tokenizer']) }
}

function correctedSplit(split: unknown): unknown {
  if (!isFields(split)) return split
  const { type, pretokenizers, individual_digits, use_regex, add_prefix_space } = split
  if (type === 'Sequence' && Array.isArray(pretokenizers))
    return { ...split, pretokenizers: pretokenizers.map(correctedSplit) }
  if (type === 'Digits') return isolated(individual_digits === true ? String.raw`\p{N}` : String.raw`\p{N}+`)
  if (type !== 'ByteLevel' || use_regex === false || add_prefix_space === true) return split
  return { type: 'Sequence', pretokenizers: [isolated(WORDS), { ...split, use_regex: false }] }
}

function isolated(expression: string): Fields {
  return { type: 'Split', pattern: { Regex: expression }, behavior: 'Isolated', invert: false }
}
