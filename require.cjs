// What `require('kvtide')` gives: the module that `import` gives, so that a process has one of each class.
try {
  module.exports = require('./dist/index.js')
} catch (error) {
  if (error?.code === 'ERR_REQUIRE_ESM') {
    error.message = `require('kvtide') needs node 20.19, 22.12 or later, this is ${process.versions.node}: use await import('kvtide') there`
  }
  throw error
}
