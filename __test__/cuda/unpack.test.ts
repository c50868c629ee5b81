// What the archive for GPUs carries in brotli is unpacked, whenever tar stops to read; what is damaged is told.
import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, constants } from 'node:zlib'

import test, { type ExecutionContext } from 'ava'

import { folder, root } from '../support/packaging/scripts.js'

/** A folder with the script and an archive of one file, with so many zeros behind its end. */
function packed(t: ExecutionContext, { padding = 0, keep = 1 }: { padding?: number; keep?: number } = {}): string {
  const at = folder(t)
  mkdirSync(join(at, 'package'))
  writeFileSync(join(at, 'package', 'file'), 'what is carried')
  const tar = execFileSync('tar', ['--create', '--file', '-', '--directory', at, 'package'])
  execFileSync('rm', ['-r', join(at, 'package')])
  const params = { [constants.BROTLI_PARAM_QUALITY]: 1, [constants.BROTLI_PARAM_LARGE_WINDOW]: 1, [constants.BROTLI_PARAM_LGWIN]: 28 }
  const whole = brotliCompressSync(Buffer.concat([tar, Buffer.alloc(padding)]), { params })
  writeFileSync(join(at, 'rest.tar.br'), whole.subarray(0, Math.floor(whole.length * keep)))
  copyFileSync(join(root, 'scripts/cuda/carried/unpack.mjs'), join(at, 'unpack.mjs'))
  return at
}

const unpack = (at: string) => spawnSync(process.execPath, [join(at, 'unpack.mjs')], { encoding: 'utf8' })

test('an archive is unpacked, though tar stops to read before all of it was written', t => {
  for (const [name, padding] of [['plain', 0], ['padded', 2 ** 26]] as const) {
    const at = packed(t, { padding })
    const { status, stderr } = unpack(at)
    t.is(status, 0, `${name}: ${stderr}`)
    t.is(stderr, '', name)
    t.is(readFileSync(join(at, 'package', 'file'), 'utf8'), 'what is carried')
  }
})

test('an archive that is cut off is told', t => {
  const at = packed(t, { keep: 0.5 })
  const { status, stderr } = unpack(at)
  t.not(status, 0)
  t.regex(stderr, /rest\.tar\.br cannot be unpacked: /)
})
