// The runtimes on which packages are tried, from the npm registry: node with the npm that comes with it, and Bun.
import { chmodSync, existsSync, mkdirSync, rmSync, symlinkSync } from 'node:fs'
import { delimiter, join } from 'node:path'

import { NODE } from '../cuda/bundle.mjs'
import { unpacked } from '../fetched.mjs'
import { Missing } from '../refusal.mjs'

/** One node of each supported major version, and the npm that it is released with. */
export const NODES = [
  [NODE.version, NODE.sha256, '10.8.2', 'c8c61ba0fa0ab3b5120efd5ba97fdaf0e0b495eef647a97c4413919eda0a878b'],
  [
    '22.23.3',
    '00b5c43d88958dbbf45339c4d5e9a76289c7e25876fd08270b379e485e151fc5',
    '10.9.4',
    '4bfba8a0c823024d1926ec9d97a37a00eb60fd2adf44b3d34a686fc32e8f51e4',
  ],
  [
    '24.21.0',
    '61ecf27ad70afee991b671c28561eb497028294a67d132f9bbaac9ad73f81d3b',
    '11.6.2',
    '585f95094ee5cb2788ee11d90f2a518a7c9ef6e083fa141d0b63ca3383675a20',
  ],
].map(([version, sha256, npm, npmSha256]) => ({
  node: { ...NODE, version, sha256 },
  npm: { name: 'npm', version: npm, sha256: npmSha256 },
}))

/** The build for processors of any age. */
export const BUN = {
  name: '@oven/bun-linux-x64-baseline',
  version: '1.4.5',
  sha256: 'c18ff4130882eaa8209f0b3e66a202abd1e07a137f38a254d0b7431bc6a03827',
}

/** The programs that a shell and npm packages call. */
const COREUTILS = [
  'sh',
  'env',
  'uname',
  'cat',
  'ls',
  'cp',
  'mv',
  'rm',
  'mkdir',
  'ln',
  'dirname',
  'basename',
  'readlink',
  'realpath',
  'true',
  'test',
]

/** Makes a folder with node, npm, npx and coreutils, and no compiler, to be the only folder on the `PATH`. */
export async function nodeFolder({ node, npm }, folder) {
  const program = join(await unpacked(node, join(folder, 'downloads')), 'bin', 'node')
  const packaged = join(await unpacked(npm, join(folder, 'downloads')), 'bin')
  chmodSync(program, 0o755)
  for (const file of ['npm-cli.js', 'npx-cli.js']) chmodSync(join(packaged, file), 0o755)
  return linked(join(folder, `node-${node.version}`), {
    node: program,
    npm: join(packaged, 'npm-cli.js'),
    npx: join(packaged, 'npx-cli.js'),
  })
}

export async function bunFolder(folder) {
  const program = join(await unpacked(BUN, join(folder, 'downloads')), 'bin', 'bun')
  chmodSync(program, 0o755)
  return linked(join(folder, `bun-${BUN.version}`), { bun: program })
}

function linked(folder, programs) {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  for (const [name, file] of Object.entries(programs)) symlinkSync(file, join(folder, name))
  for (const name of COREUTILS) {
    const file = process.env.PATH.split(delimiter)
      .map(place => join(place, name))
      .find(existsSync)
    if (file === undefined) throw new Missing(`${name} is missing`)
    symlinkSync(file, join(folder, name))
  }
  return folder
}
