/** The fuzz targets, and the longest input of each in bytes. */
export const targets = { events: 1024, grammars: 384, onnx: 100_000, peers: 512, plans: 512 }
