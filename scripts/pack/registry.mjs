// A registry of npm packages on this machine alone: verdaccio on the loopback, with nothing behind it.
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'

import { Missing, Refusal } from '../refusal.mjs'
import { run } from '../steps.mjs'

const VERDACCIO = '6.2.1'

/** The tag by which one of its dependencies asks for this one is gone. */
const OVERRIDES = { 'node-fetch': '2.7.0' }

/** Starts a registry that has `tarballs`, in an empty folder; its program is kept in `folder`. It is stopped with `stop()`. */
export async function startRegistry(folder, at, tarballs) {
  const program = await verdaccio(folder)
  mkdirSync(at, { recursive: true })
  const port = await freePort()
  const url = `http://127.0.0.1:${port}/`
  // JSON is YAML. No uplinks: what is not published here does not exist.
  const packages = { '**': { access: '$all', publish: '$all', unpublish: '$all' } }
  const config = { storage: join(at, 'storage'), packages, uplinks: {}, web: { enable: false }, log: { type: 'stdout', level: 'error' }, max_body_size: '200mb' }
  writeFileSync(join(at, 'config.yaml'), JSON.stringify(config))
  writeFileSync(join(at, 'npmrc'), `registry=${url}\n//127.0.0.1:${port}/:_authToken=anyone\nupdate-notifier=false\n`)
  const child = spawn(process.execPath, [program, '--config', join(at, 'config.yaml'), '--listen', `127.0.0.1:${port}`], { cwd: at, stdio: ['ignore', 'ignore', 'pipe'] })
  let said = ''
  child.stderr.on('data', chunk => (said += chunk))
  const stop = () => child.kill()
  process.once('exit', stop)
  if (!(await answering(url, child))) throw new Refusal(`the registry ended with ${child.exitCode}: ${said.trim()}`)
  for (const tarball of tarballs) await publish(tarball, join(at, 'npmrc'))
  return { url, stop }
}

/** verdaccio's program; it is installed once. */
async function verdaccio(folder) {
  const to = join(folder, `verdaccio-${VERDACCIO}`)
  const program = join(to, 'node_modules', 'verdaccio', 'bin', 'verdaccio')
  if (!existsSync(program)) {
    mkdirSync(to, { recursive: true })
    writeFileSync(join(to, 'package.json'), JSON.stringify({ private: true, overrides: OVERRIDES }))
    const { code, output } = await run('npm', ['install', '--silent', '--ignore-scripts', '--no-audit', '--no-fund', `verdaccio@${VERDACCIO}`], { cwd: to, silent: true })
    if (code !== 0) throw new Missing(`verdaccio ${VERDACCIO} could not be installed: ${output.trim()}`)
  }
  return program
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer().on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

async function answering(url, child) {
  while (child.exitCode === null) {
    const answered = await fetch(`${url}-/ping`).then(({ ok }) => ok, () => false)
    if (answered) return true
    await new Promise(resolve => setTimeout(resolve, 100))
  }
  return false
}

async function publish(tarball, npmrc) {
  const { code, output } = await run('npm', ['publish', tarball, '--silent', '--ignore-scripts', '--userconfig', npmrc], { silent: true })
  if (code !== 0) throw new Refusal(`${tarball} could not be published: ${output.trim()}`)
}
