// `npm run version:check -- v0.2.0`: whether a tag names the version that is here, and what CHANGELOG.md says of it.
//
// The notes go to standard output, for the page of the release.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { refusable, Refusal } from '../refusal.mjs'
import { root } from '../steps.mjs'
import { given } from '../arguments.mjs'
import { notesOf } from './changelog.mjs'
import { present } from './version.mjs'

function tagged() {
  const { words } = given({}, ['the tag'])
  const version = present(root)
  if (words[0] !== `v${version}`) throw new Refusal(`the tag is ${words[0]}, expected v${version}`)
  console.log(notesOf(readFileSync(join(root, 'CHANGELOG.md'), 'utf8'), version))
}

await refusable('this is not what the tag says', tagged)
