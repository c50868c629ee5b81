// What `require('kvtide/inspector')` gives: the module that `import` gives, so that a process has one of each class.
try {
  module.exports = require('./dist/inspector.js')
} catch (cause) {
  if (cause?.code !== 'ERR_REQUIRE_ESM') throw cause
  const message = `require('kvtide/inspector') needs node 20.19, 22.12 or later, this is ${process.versions.node}: use await import('kvtide/inspector') there`
  throw Object.assign(new Error(message, { cause }), { code: cause.code })
}
