// Compares the order of functions in src/onnx/api.rs with a header of onnxruntime, from version 1.17 on:
//
//   node scripts/onnx/places.mjs onnxruntime_c_api.h ..
//
// The header is `include/onnxruntime/core/session/onnxruntime_c_api.h` of onnxruntime's repository, which this one does not contain.
// The comparison was made with the headers of 1.17.1, 1.18.0, 1.19.0, 1.20.0, 1.21.0, 1.22.0, 1.23.2, 1.24.1, 1.25.0, 1.26.0, 1.28.0 and 1.29.0.
import { readFileSync } from 'node:fs'

/** Returns the names of a struct's function pointers, in order. */
function functions(header, struct) {
  const start = header.indexOf(`struct ${struct} {`)
  if (start === -1) throw new Error(`there is no struct ${struct}`)
  const body = header
    .slice(start, header.indexOf('\n};', start))
    .replaceAll(/\/\*[\s\S]*?\*\//g, '')
    .replaceAll(/\/\/.*/g, '')
  const names = body.matchAll(
    /ORT_API2_STATUS\(\s*(\w+)|ORT_CLASS_RELEASE\(\s*(\w+)|\(\s*ORT_API_CALL\s*\*\s*(\w+)\s*\)/g,
  )
  return [...names].map(([, status, released, other]) => status ?? other ?? `Release${released}`)
}

const api = readFileSync(new URL('../../src/onnx/api.rs', import.meta.url), 'utf8')
const own = [...api.matchAll(/^ {4}(\d+) (\w+) \w+\(/gm)].map(([, place, name]) => [Number(place), name])
const fields = [...api.slice(api.indexOf('pub struct CustomOp {')).matchAll(/^ {4}pub (\w+): (?!u32)/gm)].map(
  ([, name]) => name,
)
const headers = process.argv.slice(2)
if (headers.length === 0) throw new Error('no header given: node scripts/onnx/places.mjs onnxruntime_c_api.h ..')
if (own.length < 40 || fields.length < 20)
  throw new Error(`could not read src/onnx/api.rs: found ${own.length} functions, ${fields.length} fields`)
for (const file of headers) {
  const header = readFileSync(file, 'utf8')
  const [names, asked] = [functions(header, 'OrtApi'), functions(header, 'OrtCustomOp')]
  for (const [place, name] of own) {
    if (names[place] !== name)
      throw new Error(
        `${file}: at place ${place} there is ${names[place]}, not ${name}, which is at ${names.indexOf(name)}`,
      )
  }
  for (const [place, field] of fields.entries()) {
    const wanted = asked[place]
      ?.replaceAll(/V2$/g, '_v2')
      .replaceAll(/(?<=[a-z])[A-Z]/g, letter => `_${letter}`)
      .toLowerCase()
    if (wanted !== field) throw new Error(`${file}: field ${place} of OrtCustomOp is ${wanted}, not ${field}`)
  }
  console.log(`${file}: ${own.length} functions and ${fields.length} fields are in the right order`)
}
