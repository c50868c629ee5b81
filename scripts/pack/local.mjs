// `npm run pack:local`: installs and uses the packages as they are published, without a compiler or this repository.
//
//   addon against an old glibc -> packages -> a registry on the loopback -> npm install on node 20, 22 and 24, and Bun -> checks
//
// All files are in target/pack. The first run fetches runtimes, toolchain and registry (300 MB), and compiles everything once.
import { copyFileSync, existsSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { ADDON as CUDA_ADDON, describe } from '../cuda/binary.mjs'
import { main, Missing, Refusal } from '../refusal.mjs'
import { buildAddon } from '../release/addon.mjs'
import { exists, repository, root, temporary } from '../steps.mjs'
import { platformPackage } from './manifests.mjs'
import { emptied, makePackages, report } from './packages.mjs'
import { startRegistry } from './registry.mjs'
import { BUN, bunFolder, nodeFolder, NODES } from './runtimes.mjs'
import { PROGRAMS, Stranger } from './stranger.mjs'

const folder = join(root, 'target', 'pack')

const TARGET = 'x86_64-unknown-linux-gnu'
const ADDON = 'kvtide.linux-x64-gnu.node'
const NET_ADDON = 'kvtide-net.linux-x64-gnu.node'

async function packages() {
  if (process.platform !== 'linux' || process.arch !== 'x64')
    throw new Missing(`the addon is built on Linux with x86-64, this is ${process.platform} with ${process.arch}`)
  const missing = ['cargo', 'tar', 'xz', 'readelf'].filter(program => !exists(program))
  if (missing.length > 0) throw new Missing(`${missing.join(', ')} ${missing.length > 1 ? 'are' : 'is'} missing`)
  const addons = join(folder, 'addons')
  await buildAddon(TARGET, addons, ['--target-dir', join(folder, 'target')], true)
  await buildAddon(TARGET, addons, ['--target-dir', join(folder, 'target')])
  rmSync(join(addons, CUDA_ADDON), { force: true })
  if (existsSync(join(root, CUDA_ADDON))) {
    copyFileSync(join(root, CUDA_ADDON), join(addons, CUDA_ADDON))
    console.log(`${CUDA_ADDON}\n${describe(join(addons, CUDA_ADDON))}`)
  }
  const packed = await makePackages({ addons, to: join(folder, 'packages'), only: [ADDON, NET_ADDON, CUDA_ADDON] })
  console.log(report(packed))
  return packed
}

/** Makes placeholder packages for the other platforms, with a real package.json only. npm must not install them on this machine. */
async function standIns() {
  const addons = emptied(join(folder, 'stand-ins', 'addons'))
  const files = repository.napi.targets
    .map(target => platformPackage(repository, target).file)
    .filter(file => file !== ADDON)
  for (const file of files) writeFileSync(join(addons, file), 'of another system')
  const { made } = await makePackages({ addons, to: join(folder, 'stand-ins'), only: files })
  return made.slice(1)
}

/** Tests one node: installs kvtide by name, tries it, and tries it without its addon and with the optional addons. */
async function onNode(stranger, [kvtide, addon, net, cuda]) {
  await stranger.install('kvtide')
  stranger.checkPackages(kvtide.name, addon.name)
  await stranger.checkAll([kvtide, addon])
  await withoutAddon(stranger, kvtide, addon)
  await withNet(stranger, net)
  if (cuda !== undefined) await withCuda(stranger, cuda)
}

/** Installs with `--omit=optional`, which skips the addon, and checks that the remedy in the error installs it. */
async function withoutAddon(stranger, { name }, addon) {
  await stranger.use('npm', ['uninstall', name])
  await stranger.install(name, '--omit=optional')
  const { code, output } = await stranger.try('node', ['quick-start.mjs'])
  const remedy = /BINDING_NOT_FOUND[\s\S]*?`npm (install \S+)`/.exec(output)?.[1]
  if (code === 0 || remedy !== `install ${addon.name}@${addon.version}`)
    throw new Refusal(`without its addon, kvtide printed:\n${output}`)
  await stranger.use('npm', remedy.split(' '))
  stranger.expect('what the error says to do', await stranger.use('node', ['quick-start.mjs']), PROGRAMS[0].printed)
}

/** Checks that the addon with the network is loaded once it is installed. */
async function withNet(stranger, { name, version }) {
  await stranger.install(`${name}@${version}`)
  await stranger.checkDoctor(/^chosen +net: it is installed/m)
  await stranger.checkPrograms('node')
}

/** Checks that the addon with CUDA is loaded once it is installed, even without a GPU, unless KVTIDE_DEVICE says otherwise. */
async function withCuda(stranger, { name, version }) {
  stranger.expect(
    'doctor',
    await stranger.use('npx', ['--no-install', 'kvtide', 'doctor']),
    new RegExp(`npm install ${name}@${version}`),
  )
  await stranger.install(`${name}@${version}`)
  await stranger.checkDoctor(/^chosen +cuda: it is installed$/m, /^device cuda +(usable$|not usable: \w)/m)
  await stranger.checkPrograms('node')
  stranger.expect(
    'doctor',
    await stranger.use('npx', ['--no-install', 'kvtide', 'doctor'], { KVTIDE_DEVICE: 'cpu' }),
    /^chosen +net: it is installed; KVTIDE_DEVICE is cpu$/m,
  )
}

async function onBun(at, url, made) {
  let path
  try {
    path = await bunFolder(folder)
  } catch (error) {
    if (!(error instanceof Missing)) throw error
    return `SKIPPED: Bun ${BUN.version}: ${error.message}`
  }
  const stranger = new Stranger(join(at, 'bun'), { path, registry: url })
  await stranger.use('bun', ['add', 'kvtide'])
  stranger.checkPackages(...made.slice(0, 2).map(({ name }) => name))
  await stranger.checkPrograms('bun')
  return `Bun ${BUN.version}: bun add, quick start, workers, import and require`
}

async function strangers(made, at, url) {
  const paths = []
  for (const pair of NODES) paths.push(await nodeFolder(pair, folder))
  for (const [index, { node, npm }] of NODES.entries()) {
    const own = join(at, `node-${node.version}`)
    await onNode(new Stranger(own, { path: paths[index], registry: url }), made)
    // The other nodes run what one node has installed.
    for (const path of paths) await new Stranger(own, { path }).checkPrograms('node')
    console.log(
      `node ${node.version}, npm ${npm.version}: install, quick start, types, doctor, workers, import and require, no addon, network${made.length > 3 ? ', CUDA' : ''}, other nodes`,
    )
  }
  console.log(await onBun(at, url, made))
}

async function local() {
  const { made, over } = await packages()
  const published = [...made, ...over, ...(await standIns())]
  const at = temporary('strangers')
  const { url, stop } = await startRegistry(
    folder,
    join(at, 'registry'),
    published.map(({ tarball }) => tarball),
  )
  await strangers(made, at, url).finally(stop)
  console.log(`\n${NODES.length + 1} runtimes were tried, without a compiler on the PATH`)
}

/** With --here: installs kvtide and the locally built addon from files, and uses them as modules and with require, with types. */
async function here() {
  const built = readdirSync(root).filter(name => /^kvtide\..*\.node$/.test(name))
  if (built.length !== 1)
    throw new Refusal(`there are ${built.length} addons here, expected one: run npm run build:addon`)
  const at = temporary('pack')
  const packed = await makePackages({ addons: root, to: join(at, 'packages'), only: built })
  console.log(report(packed))
  // No registry is asked for the packages of other platforms: npm goes on without optional packages that it can't get.
  const stranger = new Stranger(join(at, 'stranger'))
  await stranger.install(...packed.made.map(({ tarball }) => tarball), '--offline')
  await stranger.checkAll(packed.made)
  console.log('the packed package works')
  await server(join(at, 'server'), [...packed.made, ...packed.over])
}

/** Installs the packed server beside kvtide in an empty folder, with its dependencies from npm's registry, and asks it. */
async function server(at, made) {
  const stranger = new Stranger(at)
  const own = made.filter(({ name }) => name !== 'kvtide-ai-sdk').map(({ tarball }) => tarball)
  const env = { ONNXRUNTIME_NODE_INSTALL: 'skip' }
  const { code, output } = await stranger.try('npm', ['install', '--no-audit', '--no-fund', ...own], env)
  if (code !== 0 && /ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT/.test(output))
    return console.log('SKIPPED: the packed server: no registry answers')
  if (code !== 0) throw new Refusal(`npm install ended with ${code}:\n${output.trim()}`)
  const helped = await stranger.use('npx', ['--no-install', 'kvtide-serve', 'help'])
  stranger.expect('npx kvtide-serve help', helped, /^ {2}--max-waiting N/m)
  const imported = "import { createServer } from 'kvtide-serve'; console.log(typeof createServer)"
  stranger.expect('kvtide-serve', await stranger.use('node', ['--input-type=module', '-e', imported]), /^function$/m)
  console.log('the packed server works')
}

await main(
  import.meta.url,
  'the packages do not work',
  process.argv.includes('--here') ? here : local,
  'the packages as they are published',
)
