// What the repository has recorded of itself, held against what is so now.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { basename } from 'node:path'

import { Refusal } from '../refusal.mjs'

function lacking(lines, others, mark) {
  const known = new Set(others)
  return lines.filter(line => !known.has(line)).map(line => `${mark} ${line}`)
}

/** The lines that one text has and the other lacks, a screenful of them. */
export function difference(before, after) {
  const [old, now] = [before, after].map(text => text.split('\n'))
  const lines = [...lacking(old, now, '-'), ...lacking(now, old, '+')]
  return (lines.length === 0 ? ['  the order of lines'] : lines).slice(0, 60).join('\n')
}

/** Writes what is so now where that was asked for. Otherwise refuses a text that is not the recorded one, and names the command that renews it. */
export function holdAgainst(file, text, renew, command) {
  if (renew) writeFileSync(file, text)
  const recorded = existsSync(file) ? readFileSync(file, 'utf8').replaceAll('\r\n', '\n') : ''
  if (recorded !== text) throw new Refusal(`${basename(file)} is not what is so now; where that is meant, npm run ${command} -- --renew\n${difference(recorded, text)}`)
  console.log(`${basename(file)} is ${renew ? 'written' : 'what is so now'}`)
}
