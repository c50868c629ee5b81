/** What `require('kvtide/transformers')` gives: the module that `import` gives. */
// @ts-ignore: where `module` is node16, TypeScript does not know that such a module can be required.
import transformers = require('./dist/transformers.js')
export = transformers
