// What the addon with CUDA says of a GPU that cannot be used. A driver is played, so that it can be asked for on any machine.
import { execFileSync } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { canCompile, folder, root } from '../support/packaging/scripts.js'
import { CUDA_FILE, answerOf } from '../support/packaging/package-copy.js'

const playing = canCompile() && existsSync(join(root, CUDA_FILE)) ? test : test.skip

/** A driver that says what the environment tells it to, and takes no work. */
const DRIVER = `
#include <stdlib.h>
static int told(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
int cuDriverGetVersion(int *version) { *version = told("PLAYED_VERSION", 13000); return 0; }
int cuInit(unsigned flags) { (void)flags; return told("PLAYED_INIT", 0); }
int cuDeviceGetCount(int *count) { *count = told("PLAYED_COUNT", 2); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int gpu = told("PLAYED_GPU", 90);
  (void)device;
  *value = attribute == 75 ? gpu / 10 : attribute == 76 ? gpu % 10 : 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)context; (void)device; return 2; }
int cuGetErrorName(int code, const char **name) { *name = code == 999 ? "PLAYED_UNKNOWN" : "PLAYED_OTHER"; return 0; }
int cuGetErrorString(int code, const char **text) { (void)code; *text = "played"; return 0; }
`

/** Puts libraries of these names into a folder: each is the played driver. */
function play(at: string, ...libraries: string[]): void {
  writeFileSync(join(at, 'driver.c'), DRIVER)
  for (const name of libraries) execFileSync('gcc', ['-shared', '-fPIC', '-Wall', '-o', name, 'driver.c'], { cwd: at })
}

/** The reasons why these devices cannot be used, in one process, with libraries from a folder. */
async function reasons(at: string, played: Record<string, number>, ...devices: string[]): Promise<unknown> {
  const env = {
    LD_LIBRARY_PATH: at,
    ...Object.fromEntries(Object.entries(played).map(([name, value]) => [`PLAYED_${name}`, String(value)])),
  }
  return answerOf(
    `const { KvCache } = await import('${new URL('../../index.ts', import.meta.url).href}')
    const options = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 }
    return ${JSON.stringify(devices)}.map(device => {
      try {
        return new KvCache({ ...options, device }).device
      } catch (error) {
        return error.code === 'DEVICE_UNAVAILABLE' ? error.details.reason : error.message
      }
    })`,
    'cuda',
    env,
  )
}

const LIBRARIES = ['libcuda.so.1', 'libcublas.so.13', 'libcurand.so.10']

playing('libraries that are missing are named', async t => {
  const at = folder(t)
  play(at, 'libcuda.so.1', 'libcurand.so.10')
  t.deepEqual(
    await reasons(at, {}, 'cuda', 'cuda:7'),
    Array.from({ length: 2 }, () => 'no cuBLAS: libcublas.so.13 not found'),
  )
})

playing('a driver is asked before a GPU is opened', async t => {
  const at = folder(t)
  play(at, ...LIBRARIES)
  t.deepEqual(await reasons(at, { VERSION: 12040 }, 'cuda', 'cpu', 'auto'), [
    'the driver is for CUDA 12.4, this build needs 13.0 or later; update the driver',
    'cpu',
    'cpu',
  ])
  t.deepEqual(
    await reasons(at, {}, 'cuda:2', 'cuda:99999999999999999999'),
    Array.from({ length: 2 }, () => 'there are 2 GPUs, cuda:0 to cuda:1'),
  )
  t.deepEqual(await reasons(at, { INIT: 100 }, 'cuda'), ['the driver finds no GPU'])
  t.deepEqual(await reasons(at, { INIT: 999 }, 'cuda'), ['the driver does not start: PLAYED_UNKNOWN'])
  t.deepEqual(await reasons(at, { GPU: 75 }, 'cuda:1'), [
    'the GPU has compute capability 7.5, this build is for 8.0 and later',
  ])
})

playing('a GPU that does not open is a reason, and the process goes on', async t => {
  const at = folder(t)
  play(at, ...LIBRARIES)
  const [reason, cpu] = (await reasons(at, {}, 'cuda', 'cpu')) as string[]
  t.regex(reason ?? '', /CUDA_ERROR_OUT_OF_MEMORY/)
  t.is(cpu, 'cpu')
})
