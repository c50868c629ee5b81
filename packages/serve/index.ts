/**
 * kvtide-serve: an OpenAI server for language models in ONNX files, over kvtide: shared prefixes are computed once, tenants are separated by API keys.
 *
 * @packageDocumentation
 */
export { type KeyEntry, keysOf } from './lib/access/keys.js'
export type { Address } from './lib/address.js'
export type { ServerOptions, ServerTimes, WorkerEvents } from './lib/options.js'
export { createServer, TextServer } from './lib/server.js'
export type { RouterOptions } from './lib/router/options.js'
export { createRouter, RouterServer } from './lib/router/router.js'
