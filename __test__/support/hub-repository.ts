// Repositories for tests of downloads, and what a cache folder must have afterwards.
import { createHash } from 'node:crypto'
import { lstatSync, readdirSync, readFileSync, readlinkSync, type Stats, statSync } from 'node:fs'
import { join } from 'node:path'

import type { ExecutionContext } from 'ava'

import { findModel, type FindOptions } from '../../lib/text/hub/hub.js'
import type { HubModel } from '../../lib/text/hub/local.js'
import type { DownloadOptions, HubLimits } from '../../lib/text/hub/settings.js'
import { gitSum, type HubServer, sha256 } from './hub.js'

/** Short pauses, and long times: a machine that is busy must not look like a network that fails. */
export const LIMITS: Partial<HubLimits> = { answerMs: 20_000, stallMs: 20_000, pauseMs: 5, attempts: 5, lockMs: 20_000 }

/** Removes the variables that downloads read, so that those of this machine have no effect. */
export function withoutVariables(): void {
  for (const name of Object.keys(process.env))
    if (/^(?:HF_|HUGGING|TRANSFORMERS_OFFLINE|XDG_CACHE)/.test(name)) delete process.env[name]
  process.env['HF_HUB_DISABLE_IMPLICIT_TOKEN'] = '1'
}

/** Bytes that follow from a seed. */
export function bytesOf(seed: string, length: number): Buffer {
  const blocks = Array.from({ length: Math.ceil(length / 32) }, (_, place) =>
    createHash('sha256').update(`${seed} ${place}`).digest(),
  )
  return Buffer.concat(blocks).subarray(0, length)
}

/** The files of a repository as onnx-community lays them out, with others that no download needs. */
export function communityFiles(seed: string = 'community', bytes = 50_000): Record<string, Buffer | string> {
  return {
    '.gitattributes': '*.onnx filter=lfs\n',
    'README.md': '# a model\n',
    'config.json': JSON.stringify({ model_type: 'llama', seed }),
    'generation_config.json': JSON.stringify({ eos_token_id: 2 }),
    'tokenizer.json': bytesOf(`${seed} tokenizer`, 3000),
    'tokenizer_config.json': JSON.stringify({ chat_template: 'in the other file' }),
    'special_tokens_map.json': '{}',
    'chat_template.jinja': '{{ messages }}',
    'model.safetensors': bytesOf(`${seed} safetensors`, 2000),
    'onnx/model.onnx': bytesOf(`${seed} f32`, 2000),
    'onnx/model.onnx_data': bytesOf(`${seed} f32 data`, 4 * bytes),
    'onnx/model_fp16.onnx': bytesOf(`${seed} f16`, 2 * bytes),
    'onnx/model_q4.onnx': bytesOf(`${seed} q4`, 1500),
    'onnx/model_q4.onnx_data': bytesOf(`${seed} q4 data`, bytes),
    'onnx/model_q4.onnx_data_1': bytesOf(`${seed} q4 data 1`, bytes / 2),
    'onnx/model_q4f16.onnx': bytesOf(`${seed} q4f16`, bytes),
    'onnx/model_quantized.onnx': bytesOf(`${seed} q8`, bytes),
  }
}

/** The files that a download of the default graph brings. */
export const DEFAULT_FILES: readonly string[] = [
  'chat_template.jinja',
  'config.json',
  'generation_config.json',
  'onnx/model_q4.onnx',
  'onnx/model_q4.onnx_data',
  'onnx/model_q4.onnx_data_1',
  'special_tokens_map.json',
  'tokenizer.json',
  'tokenizer_config.json',
]

/** Finds a model on a server of tests. */
export async function findOn(
  server: HubServer,
  cacheFolder: string,
  name: string = 'org/name',
  options: DownloadOptions = {},
  more: FindOptions = {},
): Promise<HubModel> {
  return findModel(
    name,
    { cacheFolder, endpoint: server.endpoint, ...options },
    { ...more, limits: { ...LIMITS, ...more.limits } },
  )
}

/** All files below a folder, with their kind and content; links are not followed. Another process may rename files meanwhile. */
export function listed(folder: string): { readonly path: string; readonly about: Stats }[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .flatMap(path => {
      const about = lstatSync(join(folder, path), { throwIfNoEntry: false })
      return about === undefined || about.isDirectory() ? [] : [{ path: path.replaceAll('\\', '/'), about }]
    })
    .toSorted((one, other) => (one.path < other.path ? -1 : 1))
}

/** Checks that a cache folder has these files of a commit and no others, each with the right content, and nothing that is incomplete. */
export function checkSnapshot(
  t: ExecutionContext,
  cacheFolder: string,
  commit: string,
  files: Readonly<Record<string, Buffer | string>>,
  expected: readonly string[],
  name = 'org/name',
): void {
  const model = join(cacheFolder, `models--${name.replace('/', '--')}`)
  const snapshot = join(model, 'snapshots', commit)
  t.deepEqual(
    listed(snapshot).map(({ path }) => path),
    expected,
  )
  for (const path of expected) {
    const content = Buffer.from(files[path] as string)
    t.true(readFileSync(join(snapshot, path)).equals(content), path)
    if (lstatSync(join(snapshot, path)).isSymbolicLink()) {
      const up = '../'.repeat(path.split('/').length + 1)
      const sum = readlinkSync(join(snapshot, path)).replaceAll('\\', '/')
      t.true([`${up}blobs/${sha256(content)}`, `${up}blobs/${gitSum(content)}`].includes(sum), sum)
    }
  }
  checkBlobs(t, cacheFolder)
}

/** Checks that each blob has the content that its name says, whatever happened before. */
export function checkBlobs(t: ExecutionContext, cacheFolder: string): void {
  for (const { path, about } of listed(cacheFolder)) {
    if (!path.includes('/blobs/') || path.endsWith('.incomplete') || !about.isFile()) continue
    const content = readFileSync(join(cacheFolder, path))
    t.true([sha256(content), gitSum(content)].includes(path.split('/').at(-1) as string), path)
  }
}

/** The state of a folder: a change of any file or time changes it. */
export function stateOf(folder: string): string {
  const all = ['', ...readdirSync(folder, { recursive: true, encoding: 'utf8' })]
  return JSON.stringify(
    all.toSorted().map(path => [path, lstatSync(join(folder, path)).mtimeMs, statSync(join(folder, path)).size]),
  )
}
