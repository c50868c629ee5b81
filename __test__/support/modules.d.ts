// Scripts are JavaScript, and some packages come without types: what tests import of them is theirs to say.
declare module '*.mjs'
declare module 'semver'
