/**
 * kvtide/transformers: models of transformers.js that keep their keys and values in a `PagedKvCache`, so that prefixes are computed once.
 *
 * @packageDocumentation
 */
export { CachedModel, type CachedGenerateOptions, type CachedModelOptions } from './lib/transformers/cached-model.js'
export type { GrammarOptions } from './lib/transformers/grammar.js'
export type { Grammar } from './lib/sampling/grammar.js'
export { type TokensOptions, Vocabulary, type VocabularyOptions } from './lib/sampling/vocabulary.js'
export type { DynamicCache, TransformersModel, TransformersTensor } from './lib/transformers/package.js'
