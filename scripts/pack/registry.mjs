// Starts a local registry of npm packages: verdaccio on the loopback, without an upstream registry.
import { once } from 'node:events'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'

import { Missing, Refusal } from '../refusal.mjs'
import { run } from '../steps.mjs'

const VERDACCIO = '6.2.1'

/** A pinned version, because the tag that one of its dependencies asks for no longer exists. */
const OVERRIDES = { 'node-fetch': '2.7.0' }

/** Starts a registry with `tarballs`, in an empty folder; its program is kept in `folder`. `stop()` stops it. */
export async function startRegistry(folder, at, tarballs) {
  const { runServer } = await verdaccio(folder)
  mkdirSync(at, { recursive: true })
  // No uplinks: packages that aren't published here don't exist.
  const packages = { '**': { access: '$all', publish: '$all', unpublish: '$all' } }
  const config = {
    storage: join(at, 'storage'),
    packages,
    uplinks: {},
    web: { enable: false },
    log: { type: 'stdout', level: 'error' },
    max_body_size: '200mb',
  }
  const server = await runServer({ ...config, configPath: join(at, 'config.yaml') })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  // The server does not keep the process alive, even if a later step fails.
  server.unref()
  const { port } = server.address()
  const url = `http://127.0.0.1:${port}/`
  writeFileSync(join(at, 'npmrc'), `registry=${url}\n//127.0.0.1:${port}/:_authToken=anyone\nupdate-notifier=false\n`)
  for (const tarball of tarballs) await publish(tarball, join(at, 'npmrc'))
  const stop = () => {
    server.close()
    server.closeAllConnections()
  }
  return { url, stop }
}

async function verdaccio(folder) {
  const to = join(folder, `verdaccio-${VERDACCIO}`)
  if (!existsSync(join(to, 'node_modules', 'verdaccio', 'bin', 'verdaccio'))) {
    mkdirSync(to, { recursive: true })
    writeFileSync(join(to, 'package.json'), JSON.stringify({ private: true, overrides: OVERRIDES }))
    const { code, output } = await run(
      'npm',
      ['install', '--silent', '--ignore-scripts', '--no-audit', '--no-fund', `verdaccio@${VERDACCIO}`],
      { cwd: to, silent: true },
    )
    if (code !== 0) throw new Missing(`verdaccio ${VERDACCIO} could not be installed: ${output.trim()}`)
  }
  return createRequire(join(to, 'package.json'))('verdaccio')
}

async function publish(tarball, npmrc) {
  const { code, output } = await run(
    'npm',
    ['publish', tarball, '--silent', '--ignore-scripts', '--userconfig', npmrc],
    { silent: true },
  )
  if (code !== 0) throw new Refusal(`${tarball} could not be published: ${output.trim()}`)
}
