// A tokenizer whose ids are bytes, as a `tokenizer.json` has it: byte-level BPE without merges.

const isPrintable = (byte: number): boolean =>
  (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255)

/** The characters that stand for bytes in byte-level vocabularies: printable bytes for themselves, others from U+0100 on. */
function byteCharacters(): string[] {
  let others = 0
  return Array.from({ length: 256 }, (_, byte) =>
    isPrintable(byte) ? String.fromCodePoint(byte) : String.fromCodePoint(256 + others++),
  )
}

/** Returns the content of a `tokenizer.json`. The ids of bytes begin at `firstByte`; `added` has the other tokens, `plain` those that are not special. */
export function byteTokenizer(
  added: Readonly<Record<string, number>>,
  firstByte: number,
  plain: readonly string[] = [],
): object {
  const bytes = Object.fromEntries(byteCharacters().map((character, byte) => [character, byte + firstByte]))
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: Object.entries(added).map(([content, id]) => ({
      id,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: !plain.includes(content),
    })),
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: { ...added, ...bytes },
      merges: [],
    },
  }
}
