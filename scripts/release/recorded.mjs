// Compares recorded facts about the repository with the current ones.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { basename } from 'node:path'

import { Refusal } from '../refusal.mjs'

function lacking(lines, others, mark) {
  const known = new Set(others)
  return lines.filter(line => !known.has(line)).map(line => `${mark} ${line}`)
}

/** Returns the lines that only one of two texts has, at most a screenful. */
export function difference(before, after) {
  const [old, now] = [before, after].map(text => text.split('\n'))
  const lines = [...lacking(old, now, '-'), ...lacking(now, old, '+')]
  return (lines.length === 0 ? ['  the order of lines'] : lines).slice(0, 60).join('\n')
}

/** Writes the text if `renew` is set. Otherwise refuses a text that differs from the recorded one, and names the command that renews it. */
export function holdAgainst(file, text, renew, command) {
  if (renew) writeFileSync(file, text)
  const recorded = existsSync(file) ? readFileSync(file, 'utf8').replaceAll('\r\n', '\n') : ''
  if (recorded !== text)
    throw new Refusal(
      `${basename(file)} is out of date; if the change is intended, run npm run ${command} -- --renew\n${difference(recorded, text)}`,
    )
  console.log(`${basename(file)} is ${renew ? 'written' : 'up to date'}`)
}
