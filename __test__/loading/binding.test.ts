// Which addon a process runs on, and what it says when it can run on none. The ordinary addon plays the one with CUDA.
import test from 'ava'

import { chooseBinding, loadedAddons, refuseSecond, type Surroundings } from '../../lib/loading/binding-choice.js'
import { needsNet } from '../../lib/loading/net.js'
import { throwsCode } from '../support/throws.js'
import { tsxUrl } from '../support/packaging/child.js'
import {
  ADDON_FILE,
  addonPath,
  answerOf,
  CUDA_FILE,
  CUDA_PACKAGE,
  PackageCopy,
  PLATFORM,
  VERSION,
} from '../support/packaging/package-copy.js'

const onCudaPlatform = process.platform === 'linux' && process.arch === 'x64' ? test : test.skip

const NET_FILE = `kvtide-net.${PLATFORM}.node`
const NET_PACKAGE = `kvtide-net-${PLATFORM}`

/** Loads a copy, and answers which addon it took. */
const chosenBy = (copy: PackageCopy): string =>
  `return (await import('${copy.url('lib/loading/binding.ts')}')).bindingChoice`

const use = (copy: PackageCopy): string =>
  `const { Tensor } = await import('${copy.url()}'); return [...Tensor.from(new Float32Array([7]), [1]).toArray()]`

/** The input of the choice in a copy of the package. */
function around(copy: PackageCopy, given: Partial<Surroundings> = {}): Surroundings {
  const platform = { name: PLATFORM, system: process.platform, arch: process.arch }
  return { folder: copy.folder, version: VERSION, wanted: undefined, named: undefined, platform, ...given }
}

test('without an addon with CUDA the ordinary one is taken', async t => {
  const copy = new PackageCopy(t)
  for (const wanted of [undefined, '', 'auto', 'cpu']) {
    t.is(chooseBinding(around(copy, { wanted })).kind, 'cpu', wanted)
  }
  t.deepEqual(await answerOf(chosenBy(copy)), {
    kind: 'cpu',
    file: copy.path(ADDON_FILE),
    reason: 'the addon with CUDA is not installed',
  })
})

onCudaPlatform('the addon with CUDA is taken where it lies beside, unless KVTIDE_DEVICE is cpu', async t => {
  const copy = new PackageCopy(t)
  const file = copy.addAddon()
  for (const wanted of ['', 'auto', 'cuda']) {
    t.is(chooseBinding(around(copy, { wanted })).file, file, wanted)
  }
  t.deepEqual(await answerOf(chosenBy(copy)), { kind: 'cuda', file, reason: 'it is installed' })
  const cpu = { kind: 'cpu', file: copy.path(ADDON_FILE), reason: 'KVTIDE_DEVICE is cpu' }
  t.deepEqual(await answerOf(chosenBy(copy), 'cpu'), cpu)
  t.deepEqual(await answerOf(use(copy)), [7])
})

onCudaPlatform('the addon with CUDA is taken from its package', async t => {
  const copy = new PackageCopy(t)
  const file = copy.addPackage(CUDA_PACKAGE, CUDA_FILE)
  t.deepEqual(await answerOf(chosenBy(copy)), { kind: 'cuda', file, reason: 'it is installed' })
  t.deepEqual(await answerOf(use(copy)), [7])
})

onCudaPlatform('an addon with CUDA that does not load is an error that says how to go on', async t => {
  const copy = new PackageCopy(t)
  const file = copy.addAddon(CUDA_FILE, 'not a library')
  const error = (await answerOf(chosenBy(copy))) as { code: string; message: string }
  t.is(error.code, 'BINDING_NOT_FOUND')
  t.true(error.message.includes(file) && error.message.includes('KVTIDE_DEVICE=cpu'), error.message)
  t.deepEqual(await answerOf(use(copy), 'cpu'), [7])
})

test('the addon with the network is taken where it lies beside or is installed, before the ordinary one', async t => {
  const beside = new PackageCopy(t)
  const file = beside.addAddon(NET_FILE)
  for (const wanted of ['', 'auto', 'cpu']) t.is(chooseBinding(around(beside, { wanted })).file, file, wanted)
  t.deepEqual(await answerOf(chosenBy(beside), 'cpu'), {
    kind: 'net',
    file,
    reason: 'it is installed; KVTIDE_DEVICE is cpu',
  })
  const installed = new PackageCopy(t)
  const own = installed.addPackage(NET_PACKAGE, NET_FILE)
  t.deepEqual(chooseBinding(around(installed)), {
    kind: 'net',
    file: own,
    reason: 'it is installed; the addon with CUDA is not installed',
  })
  t.deepEqual(await answerOf(use(installed)), [7])
  // It alone will do.
  installed.remove(ADDON_FILE)
  t.is(chooseBinding(around(installed)).file, own)
  installed.remove(`node_modules/${NET_PACKAGE}/${NET_FILE}`)
  t.regex(
    throwsCode(t, 'BINDING_NOT_FOUND', () => chooseBinding(around(installed))).message,
    /kvtide-net.* is missing from its package/,
  )
})

test('the addon with the network has the version of the package, and the platform of the process', t => {
  const copy = new PackageCopy(t)
  const file = copy.addPackage(NET_PACKAGE, NET_FILE, { version: '9.9.9', text: 'never loaded' })
  throwsCode(t, 'BINDING_MISMATCH', () => chooseBinding(around(copy)), { file, version: '9.9.9', expected: VERSION })
  const other = new PackageCopy(t)
  other.addPackage('kvtide-net-sunos-x64', 'kvtide-net.sunos-x64.node')
  t.is(chooseBinding(around(other)).kind, 'cpu')
})

onCudaPlatform('of all addons the one with CUDA is taken, and without it the one with the network', t => {
  const copy = new PackageCopy(t)
  const [cuda, net] = [copy.addPackage(CUDA_PACKAGE, CUDA_FILE), copy.addPackage(NET_PACKAGE, NET_FILE)]
  for (const wanted of [undefined, 'auto', 'cuda'])
    t.deepEqual(chooseBinding(around(copy, { wanted })), { kind: 'cuda', file: cuda, reason: 'it is installed' })
  t.is(chooseBinding(around(copy, { wanted: 'cpu' })).file, net)
  t.is(chooseBinding(around(copy, { named: net })).kind, 'net')
  t.is(chooseBinding(around(copy, { named: cuda })).kind, 'cuda')
})

test('an addon with the network that does not load is an error that names it', async t => {
  const copy = new PackageCopy(t)
  const file = copy.addAddon(NET_FILE, 'not a library')
  const error = (await answerOf(chosenBy(copy), 'cpu')) as { code: string; message: string }
  t.is(error.code, 'BINDING_NOT_FOUND')
  t.true(error.message.startsWith('the addon with the network ') && error.message.includes(file), error.message)
})

test('what needs the network says what to install where there is none', t => {
  t.notThrows(() => needsNet('RedisStore', () => {}))
  const { message } = throwsCode(t, 'BINDING_NOT_FOUND', () => needsNet('RedisStore', undefined), {
    platform: PLATFORM,
    reason: `install it with \`npm install ${NET_PACKAGE}@${VERSION}\``,
  })
  t.true(message.startsWith('RedisStore needs the addon'), message)
})

test('KVTIDE_DEVICE asks for what is not there, or for nothing known', async t => {
  const copy = new PackageCopy(t)
  const missing = (await answerOf(chosenBy(copy), 'cuda')) as { code: string; details: { reason: string } }
  t.is(missing.code, 'BINDING_NOT_FOUND')
  const wrong = await answerOf(chosenBy(copy), 'gpu')
  t.deepEqual(wrong, {
    code: 'INVALID_ARGUMENT',
    message: 'KVTIDE_DEVICE is "gpu", expected auto, cpu or cuda',
    details: { argument: 'KVTIDE_DEVICE', value: 'gpu', expected: 'auto, cpu or cuda' },
  })
})

test('where there is no addon with CUDA at all, it is not looked for', t => {
  const copy = new PackageCopy(t)
  copy.addAddon()
  copy.addAddon('kvtide.darwin-arm64.node', 'never loaded')
  const mac = around(copy, { platform: { name: 'darwin-arm64', system: 'darwin', arch: 'arm64' } })
  t.is(chooseBinding(mac).kind, 'cpu')
  throwsCode(t, 'BINDING_NOT_FOUND', () => chooseBinding({ ...mac, wanted: 'cuda' }), {
    platform: 'darwin-arm64',
    reason: 'there is none for this platform',
  })
})

test('an addon of another version is refused', async t => {
  const copy = new PackageCopy(t)
  copy.setVersion('9.9.9')
  const error = (await answerOf(chosenBy(copy))) as { code: string; details: unknown }
  t.is(error.code, 'BINDING_MISMATCH')
  t.deepEqual(error.details, { file: copy.path(ADDON_FILE), version: VERSION, expected: '9.9.9' })
})

test('a second copy in the process is refused, and the first goes on', async t => {
  const [first, second] = [new PackageCopy(t), new PackageCopy(t)]
  const answer = await answerOf(`
    const { Tensor } = await import('${first.url()}')
    const error = await import('${second.url()}').then(() => undefined, error => error)
    return [error.code, error.details.file, Tensor.from(new Float32Array([7]), [1]).toArray()[0]]`)
  t.deepEqual(answer, ['BINDING_CONFLICT', second.path(ADDON_FILE), 7])
})

/** Loads a copy, then loads it in a worker with a `KVTIDE_DEVICE` of its own, and answers what the worker says. */
function inWorker(copy: PackageCopy, device: string): string {
  const script = `
    const { parentPort } = await import('node:worker_threads')
    const { register } = await import(${JSON.stringify(tsxUrl)})
    register()
    const said = await import('${copy.url('lib/loading/binding.ts')}').then(loaded => loaded.bindingChoice.kind, error => error.code)
    parentPort.postMessage(said)`
  return `
    await import('${copy.url()}')
    const { Worker } = await import('node:worker_threads')
    const script = new URL('data:text/javascript,${encodeURIComponent(script).replaceAll("'", '%27')}')
    const worker = new Worker(script, { env: { ...process.env, KVTIDE_DEVICE: '${device}' } })
    return new Promise((resolve, reject) => worker.on('message', resolve).on('error', reject))`
}

onCudaPlatform('a worker runs on the addon of its process, or on none', async t => {
  const copy = new PackageCopy(t)
  copy.addAddon()
  t.is(await answerOf(inWorker(copy, '')), 'cuda')
  t.is(await answerOf(inWorker(copy, 'cpu')), 'BINDING_CONFLICT')
  t.is(await answerOf(inWorker(copy, 'cpu'), 'cpu'), 'cpu')
  t.is(await answerOf(inWorker(copy, 'cuda'), 'cpu'), 'BINDING_CONFLICT')
})

test('the addon that is loaded is told from others', t => {
  const copy = new PackageCopy(t)
  const cpu = { kind: 'cpu', file: copy.path(ADDON_FILE), reason: '' } as const
  const cuda = { kind: 'cuda', file: copy.addAddon(), reason: '' } as const
  const other = `/elsewhere/${ADDON_FILE}`
  t.notThrows(() => refuseSecond(cpu, [cpu.file], undefined))
  t.notThrows(() => refuseSecond(cuda, [cuda.file], cuda.file))
  const net = { kind: 'net', file: copy.addAddon(NET_FILE), reason: '' } as const
  throwsCode(t, 'BINDING_CONFLICT', () => refuseSecond(net, [cpu.file], undefined), {
    file: net.file,
    loaded: cpu.file,
  })
  throwsCode(t, 'BINDING_CONFLICT', () => refuseSecond(cuda, [cpu.file], undefined), {
    file: cuda.file,
    loaded: cpu.file,
  })
  throwsCode(t, 'BINDING_CONFLICT', () => refuseSecond(cpu, [cuda.file], undefined), {
    file: cpu.file,
    loaded: cuda.file,
  })
  throwsCode(t, 'BINDING_CONFLICT', () => refuseSecond(cpu, [cpu.file, other], undefined), {
    file: cpu.file,
    loaded: other,
  })
  throwsCode(t, 'BINDING_CONFLICT', () => refuseSecond(cpu, [], other), { file: cpu.file, loaded: other })
})

const env = (file: string): NodeJS.ProcessEnv => ({ NAPI_RS_NATIVE_LIBRARY_PATH: file })

test('a file that is named is taken, whatever else is there', async t => {
  const copy = new PackageCopy(t)
  copy.addAddon(CUDA_FILE, 'never loaded')
  t.deepEqual(await answerOf(chosenBy(copy), 'auto', env(addonPath)), {
    kind: 'cpu',
    file: addonPath,
    reason: 'NAPI_RS_NATIVE_LIBRARY_PATH names it',
  })
  const missing = (await answerOf(chosenBy(copy), 'auto', env('nowhere.node'))) as { code: string; message: string }
  t.is(missing.code, 'BINDING_NOT_FOUND')
  t.regex(missing.message, /nowhere\.node, could not be loaded: ENOENT.*NAPI_RS_NATIVE_LIBRARY_PATH names it/)
})

test('what a process has mapped tells its addons', t => {
  const maps = [
    '7f00-7f01 r-xp 00000000 08:01 77 ',
    '/app/a b/kvtide.linux-x64-gnu.node\n7f01-7f02 r--p 00000000 08:01 77 /app/other.node\n',
    '7f02-7f03 r--p 0 08:01 7 /old/kvtide-cuda.linux-x64-gnu.node (deleted)',
  ].join('')
  t.deepEqual(loadedAddons(maps), ['/app/a b/kvtide.linux-x64-gnu.node', '/old/kvtide-cuda.linux-x64-gnu.node'])
  t.deepEqual(loadedAddons(''), [])
})
