// Scripts are JavaScript, and some packages come without types: what tests import of them is theirs to say.
declare module '*.mjs'
declare module 'semver'

// The types of onnxruntime-common name some of browsers.
interface ImageData {}
interface ImageBitmap {}
interface HTMLImageElement {}
interface WebGLRenderingContext {}
interface WebGLTexture {}
