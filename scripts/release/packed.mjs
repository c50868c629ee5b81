// `npm run check:package`: checks the npm package as users get it: its files, its size, publint and are-the-types-wrong.
//
// It makes the package as a release does, or checks `--tarball file`. `-- --renew` records its files.
import { existsSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'

import { publint } from 'publint'
import { formatMessage } from 'publint/utils'

import { makePackages, packed as look } from '../pack/packages.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { ask, root, run, temporary } from '../steps.mjs'
import { holdAgainst } from './recorded.mjs'

const CONTENTS = join(root, '__test__/recorded/packed-files.txt')

/** Addons differ by platform, so their sizes are checked separately. */
const OF_ADDON = /\.node$/

/** The addon of a checkout includes the network. The ordinary one, of 12 MB, is built and measured by addon.mjs, as in a release. */
export const BUDGETS = {
  root: 1_140_000,
  'kvtide.linux-x64-gnu.node': 22_600_000,
  'kvtide-cuda.linux-x64-gnu.node': 60_000_000,
}

export function within(name, bytes, budget) {
  if (bytes > budget) throw new Refusal(`${name} has ${bytes} bytes, at most ${budget} are wanted`)
  return `${name}: ${bytes} bytes of ${budget}`
}

function strippedBytes(file, folder) {
  const stripped = join(folder, 'stripped.node')
  if (ask('strip', ['--strip-all', '-o', stripped, file]) === undefined) return statSync(file).size
  return statSync(stripped).size
}

function checkSizes(files, folder) {
  const bytes = files.filter(({ path }) => !OF_ADDON.test(path)).reduce((sum, { size }) => sum + size, 0)
  console.log(within('the package without its addon', bytes, BUDGETS.root))
  for (const [name, budget] of Object.entries(BUDGETS)) {
    if (name === 'root') continue
    const file = join(root, name)
    if (existsSync(file)) console.log(within(name, strippedBytes(file, folder), budget))
    else console.log(`SKIPPED: the size of ${name}: it was not built here`)
  }
}

export async function lint(packed) {
  const tarball = packed.buffer.slice(packed.byteOffset, packed.byteOffset + packed.byteLength)
  const { messages, pkg } = await publint({ pack: { tarball }, level: 'suggestion', strict: true })
  return messages.map(message => formatMessage(message, pkg, { color: false }))
}

async function checkTypes(tarball) {
  const { code, output } = await run('attw', [tarball, '--profile', 'strict', '--no-emoji', '--no-color'], {
    silent: true,
  })
  if (code !== 0) throw new Refusal(`are-the-types-wrong:\n${output.trim()}`)
  console.log('are-the-types-wrong found nothing')
}

async function check() {
  const { renew = false, tarball: named } = given({ renew: { type: 'boolean' }, tarball: { type: 'string' } })
  if (named !== undefined && !existsSync(named)) throw new Refusal(`--tarball is ${named}, which is not there`)
  const folder = temporary('packed')
  const { tarball, files } =
    named === undefined ? (await makePackages({ addons: root, to: folder, only: [] })).made[0] : await look(named)
  const contents = files
    .map(({ path }) => path)
    .filter(path => !OF_ADDON.test(path))
    .sort()
  holdAgainst(CONTENTS, `${contents.join('\n')}\n`, renew, 'check:package')
  checkSizes(files, folder)
  const packed = readFileSync(tarball)
  const messages = await lint(packed)
  if (messages.length > 0) throw new Refusal(`publint:\n${messages.join('\n')}`)
  console.log('publint found nothing')
  await checkTypes(tarball)
}

await main(import.meta.url, 'package check failed', check)
