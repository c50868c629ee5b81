// CHANGELOG.md, by Keep a Changelog: `## Unreleased`, then `## 0.2.0 - 2026-01-31` and so on, the newest first.
import { Refusal } from '../refusal.mjs'

const UNRELEASED = '## Unreleased'

/** The sections: their headings, and what is said under each. */
export function sections(text) {
  const parts = text.split(/^(?=## )/m).slice(1)
  return parts.map(part => {
    const [heading, ...lines] = part.split('\n')
    const [, version, date] = /^## (\S+)(?: - (\d{4}-\d{2}-\d{2}))?$/.exec(heading) ?? []
    return { heading, version, date, notes: lines.join('\n').trim() }
  })
}

/** What a version brings; refused where the changelog does not say. */
export function notesOf(text, version) {
  const found = sections(text).find(section => section.version === version && section.date !== undefined)
  if (found === undefined) throw new Refusal(`CHANGELOG.md has no heading for ${version}: run npm run version:raise -- ${version}`)
  if (found.notes === '') throw new Refusal(`CHANGELOG.md says nothing of ${version}`)
  return found.notes
}

/** The changelog with what was not released yet under the heading of `version`. */
export function released(text, version, date) {
  if (sections(text).some(section => section.version === version)) throw new Refusal(`CHANGELOG.md has a heading for ${version} already`)
  const unreleased = sections(text).find(({ heading }) => heading === UNRELEASED)
  if (unreleased === undefined) throw new Refusal(`CHANGELOG.md has no heading "${UNRELEASED}"`)
  if (unreleased.notes === '') throw new Refusal(`CHANGELOG.md says nothing under "${UNRELEASED}": there is nothing to release`)
  return text.replace(`${UNRELEASED}\n`, `${UNRELEASED}\n\n## ${version} - ${date}\n`)
}
