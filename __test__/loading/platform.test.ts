// What a process runs on, and whether an addon can be loaded there at all.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { mappedFiles, PLATFORMS, platformOf, runtimeProblem } from '../../lib/loading/platform.js'
import { PLATFORM } from '../support/packaging/package-copy.js'

test('a platform is named as its package is', t => {
  const glibc = '7f00-7f01 r-xp 0 08:01 7 /usr/lib/x86_64-linux-gnu/libc.so.6\n'
  const musl = '7f00-7f01 r-xp 0 08:01 7 /lib/ld-musl-x86_64.so.1\n'
  t.deepEqual(platformOf('linux', 'x64', glibc), { name: 'linux-x64-gnu', system: 'linux', arch: 'x64' })
  t.is(platformOf('linux', 'x64', musl).name, 'linux-x64-musl')
  t.is(
    platformOf('linux', 'arm64', musl.replace('ld-musl-x86_64.so.1', 'libc.musl-aarch64.so.1')).name,
    'linux-arm64-musl',
  )
  t.is(platformOf('darwin', 'arm64', '').name, 'darwin-arm64')
  t.is(platformOf('win32', 'x64', '').name, 'win32-x64-msvc')
  t.is(platformOf('freebsd', 'x64', '').name, 'freebsd-x64')
})

test('this process runs on what its addon was built for, also where nothing is listed', t => {
  t.is(platformOf(process.platform, process.arch, mappedFiles()).name, PLATFORM)
  t.is(platformOf(process.platform, process.arch, '').name, PLATFORM)
})

test('there is a platform for every target that is built', t => {
  const { napi } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    napi: { targets: string[] }
  }
  const systems: Record<string, string> = { unknown: 'linux', apple: 'darwin', pc: 'win32' }
  const names = napi.targets.map(target => {
    const [cpu, vendor = '', , abi] = target.split('-')
    return [systems[vendor], cpu === 'x86_64' ? 'x64' : 'arm64', abi].filter(Boolean).join('-')
  })
  t.deepEqual([...PLATFORMS], names.sort())
})

test('a runtime whose Node-API is too old is told so', t => {
  t.is(
    runtimeProblem({ node: '18.12.0', napi: '8' }),
    'node 18.12.0 has Node-API 8, kvtide needs 9: use node 20 or later',
  )
  t.is(runtimeProblem({ node: '20.0.0', napi: '9' }), undefined)
  t.is(runtimeProblem({ node: '26.0.0', napi: '11' }), undefined)
  t.is(runtimeProblem({}), undefined)
  t.is(runtimeProblem(process.versions), undefined)
})
