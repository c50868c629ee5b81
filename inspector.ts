/**
 * kvtide/inspector: a web page and Prometheus metrics that show a cache while it is in use.
 *
 * @packageDocumentation
 */
export { inspect, Inspector, type InspectOptions } from './lib/inspector/inspector.js'
