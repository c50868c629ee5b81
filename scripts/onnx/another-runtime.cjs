// Preloaded by tests that run with another version of onnxruntime-node: KVTIDE_ONNXRUNTIME names the folder of a project that has it.
const Module = require('node:module')
const { join } = require('node:path')

const RESOLVE = '_resolveFilename'
const project = process.env.KVTIDE_ONNXRUNTIME
if (project !== undefined) {
  const resolve = Module[RESOLVE]
  const own = Module.createRequire(join(project, 'package.json'))
  Module[RESOLVE] = function (request, ...rest) {
    return /^onnxruntime-node(\/|$)/.test(request) && !rest[0]?.filename?.startsWith(project)
      ? own.resolve(request)
      : resolve.call(this, request, ...rest)
  }
}
