import {
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

import type { ExecutionContext } from 'ava'

import { root, runNode } from './child.js'

/** The CUDA addon's file name for the loader. */
export const CUDA_FILE = 'kvtide-cuda.linux-x64-gnu.node'
export const CUDA_PACKAGE = 'kvtide-cuda-linux-x64-gnu'

/** The package's ordinary addon of this platform, built locally. */
export const ADDON_FILE: string =
  readdirSync(root).find(name => /^kvtide\..*\.node$/.test(name)) ?? 'no addon was built'

export const addonPath: string = join(root, ADDON_FILE)

/** The platform of the tests, in the form that package names use. */
export const PLATFORM: string = ADDON_FILE.split('.')[1] ?? ''

export const VERSION: string = (JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string })
  .version

/** A copy of the package in a temporary folder. Tests can change its files. */
export class PackageCopy {
  readonly folder: string

  constructor(t: ExecutionContext) {
    this.folder = realpathSync(mkdtempSync(join(tmpdir(), 'kvtide-copy-')))
    t.teardown(() => rmSync(this.folder, { recursive: true, force: true }))
    for (const part of ['package.json', 'index.ts', 'lib', ADDON_FILE]) {
      cpSync(join(root, part), join(this.folder, part), { recursive: true })
    }
  }

  url(file = 'index.ts'): string {
    return pathToFileURL(join(this.folder, file)).href
  }

  path(file: string): string {
    return join(this.folder, file)
  }

  /** Adds an addon of that name: a copy of the ordinary one, or a broken file with the content `text`. */
  addAddon(file: string = CUDA_FILE, text?: string): string {
    const path = join(this.folder, file)
    mkdirSync(join(path, '..'), { recursive: true })
    if (text === undefined) copyFileSync(addonPath, path)
    else writeFileSync(path, text)
    return path
  }

  addPackage(
    name: string,
    file: string,
    { version = VERSION, text }: { version?: string; text?: string } = {},
  ): string {
    const folder = `node_modules/${name}`
    this.addAddon(`${folder}/package.json`, JSON.stringify({ name, version, main: file }))
    return this.addAddon(`${folder}/${file}`, text)
  }

  remove(file: string): void {
    rmSync(this.path(file))
  }

  setVersion(version: string): void {
    const file = join(this.folder, 'package.json')
    writeFileSync(file, JSON.stringify({ ...(JSON.parse(readFileSync(file, 'utf8')) as object), version }))
    const source = this.path('lib/loading/version.ts')
    writeFileSync(source, readFileSync(source, 'utf8').replace(`'${VERSION}'`, `'${version}'`))
  }
}

/** Runs a module in a new process, with `KVTIDE_DEVICE` as given. Returns its default export, or the error. */
export async function answerOf(source: string, device?: string, more: NodeJS.ProcessEnv = {}): Promise<unknown> {
  const script = `
    const answer = async () => { ${source} }
    const failed = ({ code, message, details }) => ({ code, message, details })
    process.stdout.write(JSON.stringify(await answer().catch(failed)))`
  const { KVTIDE_DEVICE: _, ...env } = process.env
  const wanted = { ...env, ...(device === undefined ? {} : { KVTIDE_DEVICE: device }), ...more }
  const { out, err } = await runNode(['--import=tsx', '--input-type=module', '--eval', script], { env: wanted })
  if (err !== '') console.error(err)
  return out === '' ? 'the process ended' : JSON.parse(out)
}
