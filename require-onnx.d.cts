/** What `require('kvtide/onnx')` gives: the module that `import` gives. */
// @ts-ignore: where `module` is node16, TypeScript does not know that such a module can be required.
import onnx = require('./dist/onnx.js')
export = onnx
