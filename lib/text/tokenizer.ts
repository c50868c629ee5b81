// A model's tokenizer: text to ids, and back.
import { KvTideError } from '../errors/errors.js'

const unfinished = (): never => {
  throw new KvTideError('INTERNAL', 'kvtide/text is not built yet', {})
}

/** Text that grows with each token: never half a character, and no earlier text changes. */
export interface Detokenizer {
  /** Adds a token, and returns the text that is final now; often of several tokens, or none. */
  push(id: number): string
  /** Returns the rest: U+FFFD for bytes that are no whole character. */
  end(): string
}

/** The tokenizer of a {@link TextModel}. */
export class TextTokenizer {
  /** The number of ids. */
  declare readonly size: number
  /** Returns the ids of a text. With `addSpecialTokens`, which is true by default, those that the tokenizer puts around a text are included. */
  encode(_text: string, _options: { readonly addSpecialTokens?: boolean } = {}): Uint32Array {
    return unfinished()
  }
  /** Returns the text of ids, without special tokens unless `skipSpecialTokens` is false. */
  decode(_ids: Iterable<number>, _options: { readonly skipSpecialTokens?: boolean } = {}): string {
    return unfinished()
  }
  /** Returns an object that turns ids into text one by one. */
  stream(_options: { readonly skipSpecialTokens?: boolean } = {}): Detokenizer {
    return unfinished()
  }
}
