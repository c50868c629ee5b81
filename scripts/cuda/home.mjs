// The folder that the build sees as CUDA_HOME: compiler and headers of the toolkit, and the link stubs as its only libraries.
//
//   target/cuda/home-<what is in it>/  bin, include, nvvm -> toolkit    lib/ libcuda.a, libcublas.a, …, libcudart.a
//
// cudarc tells the linker to look there and nowhere else, so that nothing but stubs can be found, whatever else the machine
// has. Another toolkit or other stubs make another folder, and cargo builds again what depends on it.
import { createHash } from 'node:crypto'
import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'

import { Refusal } from '../refusal.mjs'
import { compileStub } from './stubs.mjs'

const MADE_BY = ['home.mjs', 'stubs.mjs']

export function cudaHome(folder, { home, version }, stubs) {
  const digest = createHash('sha256').update(JSON.stringify([home, version, stubs]))
  for (const file of MADE_BY) digest.update(readFileSync(new URL(file, import.meta.url)))
  const whole = join(folder, `home-${digest.digest('hex').slice(0, 12)}`)
  if (existsSync(whole)) return whole

  const partial = `${whole}.partial`
  rmSync(partial, { recursive: true, force: true })
  mkdirSync(join(partial, 'lib'), { recursive: true })
  for (const part of ['bin', 'include', 'nvvm']) symlinkSync(join(home, part), join(partial, part))
  for (const stub of stubs) compileStub(join(partial, 'lib'), stub)
  // The static form of the CUDA runtime opens the driver by itself, at its first use.
  copyFileSync(staticRuntime(home), join(partial, 'lib', 'libcudart.a'))
  renameSync(partial, whole)
  return whole
}

function staticRuntime(home) {
  const places = ['lib', 'lib64', 'targets/x86_64-linux/lib'].map(place => join(home, place, 'libcudart_static.a'))
  const found = places.find(file => existsSync(file))
  if (found === undefined) throw new Refusal(`the toolkit has no libcudart_static.a: looked for ${places.join(', ')}`)
  return found
}
