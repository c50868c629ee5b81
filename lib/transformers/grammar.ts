// Grammars for the `generate` of transformers.js: a logits processor excludes tokens, and a stopping criterion ends a text behind which nothing may follow.
//
// The criterion is called behind each token, before the model computes the next one. So the next mask is computed in the background from then on, and the
// processor finds it. Rows of a batch have a matcher each.
import type { NativeMatcher } from '#binding'

import { optional } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { type Grammar, readGrammar } from '../sampling/grammar.js'
import { compile, readVocabulary, type Vocabulary } from '../sampling/vocabulary.js'
import type { TransformersModel, TransformersTensor } from './package.js'

/** The option `grammar` of {@link CachedModel.generate}. */
export interface GrammarOptions {
  /** The texts that may be generated: see `grammar` of `OnnxModel.generate`. The model's end-of-sequence ids are allowed exactly where the text is complete. */
  readonly grammar?: Grammar
  /** The tokens of the model's tokenizer, for `grammar`: `await Vocabulary.load(tokenizer)`. */
  readonly vocabulary?: Vocabulary
}

type Rows = readonly (readonly (bigint | number)[])[]

/** @internal The options of `generate` that follow from a grammar. */
export interface GrammarHooks {
  readonly logits_processor: readonly unknown[]
  readonly stopping_criteria: readonly unknown[]
}

/** @internal The grammar of a call. */
export interface CallGrammar extends Disposable {
  readonly hooks: GrammarHooks
}

/** @internal Compiles the grammar of a call, if there is one. `given` are the other options of the call, and `length` is that of its prompt. */
export async function grammarOf(
  { grammar, vocabulary }: { readonly grammar?: unknown; readonly vocabulary?: unknown },
  given: Readonly<Record<string, unknown>>,
  model: TransformersModel,
  length: number,
): Promise<CallGrammar | undefined> {
  const own = optional(readVocabulary, 'vocabulary', vocabulary)
  if (grammar === undefined) return undefined
  const text = readGrammar('grammar', grammar)
  const tokens = own ?? readVocabulary('vocabulary', vocabulary)
  const compiled = await compile(tokens, text)
  const ends = Uint32Array.from(new Set([...endsOf(given, model), ...tokens.endOfSequence]))
  const matchers: NativeMatcher[] = []
  const matcherOf = (row: number): NativeMatcher => (matchers[row] ??= compiled.matcher(ends))
  const textOf = (row: Rows[number]): Uint32Array => Uint32Array.from(row.slice(length), Number)
  const process = (rows: Rows, logits: TransformersTensor): TransformersTensor => {
    const { data } = logits
    if (!(data instanceof Float32Array)) throw invalid('logits', data, 'a Float32Array')
    const width = data.length / rows.length
    for (const [place, row] of rows.entries()) {
      const matcher = matcherOf(place)
      if (row.length === length) matcher.set(textOf(row))
      matcher.apply(data.subarray(place * width, (place + 1) * width))
    }
    return logits
  }
  const stops = (rows: Rows): boolean[] =>
    rows.map((row, place) => {
      const matcher = matcherOf(place)
      if (ends.includes(Number(row.at(-1)))) return true
      matcher.set(textOf(row))
      return matcher.isOver()
    })
  return {
    hooks: {
      logits_processor: [...listed(given['logits_processor']), process],
      stopping_criteria: [...listed(given['stopping_criteria']), stops],
    },
    [Symbol.dispose]: () => matchers.forEach(matcher => matcher.dispose()),
  }
}

/** The ids that end a text, from the call, or else from the model's configs. */
function endsOf(given: Readonly<Record<string, unknown>>, model: TransformersModel): number[] {
  const { generation_config: own } = given
  const { generation_config: declared } = model as { readonly generation_config?: unknown }
  const found = [given, own, declared, model.config]
    .map(source => (source as { readonly eos_token_id?: unknown } | null | undefined)?.eos_token_id)
    .find(ids => ids !== undefined && ids !== null)
  return [found].flat().filter(id => typeof id === 'number' && id >>> 0 === id) as number[]
}

/** One hook, or a list of them: lists of transformers.js can be called too. */
function listed(hooks: unknown): readonly unknown[] {
  if (hooks === undefined || hooks === null) return []
  return Symbol.iterator in Object(hooks) ? [...(hooks as Iterable<unknown>)] : [hooks]
}
