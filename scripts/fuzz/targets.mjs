/** The fuzz targets, and the longest input of each in bytes. */
export const targets = {
  entries: 512,
  events: 1024,
  files: 2048,
  grammars: 384,
  onnx: 100_000,
  peers: 512,
  plans: 512,
  redis: 512,
  tables: 512,
}
