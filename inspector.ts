/**
 * kvtide/inspector: a page that shows a cache while it is in use.
 *
 * @packageDocumentation
 */
export { inspect, Inspector, type InspectOptions } from './lib/inspector/inspector.js'
