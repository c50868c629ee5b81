/** What `require('kvtide/inspector')` gives: the module that `import` gives. */
// @ts-ignore: where `module` is node16, TypeScript does not know that such a module can be required.
import inspector = require('./dist/inspector.js')
export = inspector
