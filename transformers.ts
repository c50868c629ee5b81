/**
 * kvtide/transformers: models of transformers.js whose keys and values are kept in a `PagedKvCache`.
 *
 * @packageDocumentation
 */
export { CachedModel, type CachedGenerateOptions, type CachedModelOptions } from './lib/transformers/cached-model.js'
export type { DynamicCache, TransformersModel, TransformersTensor } from './lib/transformers/package.js'
