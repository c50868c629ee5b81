// Scripts are JavaScript, and some packages come without types: tests declare the types of what they import.
declare module '*.mjs'
declare module 'semver'

// The types of onnxruntime-common mention some browser types.
interface ImageData {}
interface ImageBitmap {}
interface HTMLImageElement {}
interface WebGLRenderingContext {}
interface WebGLTexture {}

// The types of @ai-sdk/provider import those of a package that it does not depend on.
declare module 'json-schema' {
  export type JSONSchema7 = object
  export type JSONSchema7Definition = object | boolean
}
