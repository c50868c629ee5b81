// Describes the machine from what the system reports. It contains neither the machine's name nor a path.
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { arch, availableParallelism, cpus, loadavg, platform, release, totalmem } from 'node:os'

import type { Machine } from '../report/report.js'

const FEATURES = new Set(['avx2', 'fma', 'f16c', 'avx512f', 'avx512_bf16', 'avx512_vnni', 'asimd'])

/** Returns the content of a system file, or an empty text if it doesn't exist. */
export function read(path: string): string {
  try {
    return readFileSync(path, 'latin1').trim()
  } catch {
    return ''
  }
}

/** The caches of the first core, nearest first: `L2 1024K`. */
function caches(): string[] {
  return Array.from({ length: 8 }, (_, index) => {
    const [level, kind, size] = ['level', 'type', 'size'].map(what =>
      read(`/sys/devices/system/cpu/cpu0/cache/index${index}/${what}`),
    )
    return size === '' || kind === 'Instruction' ? '' : `L${level} ${size}`
  }).filter(cache => cache !== '')
}

/** Describes this machine. Properties that it doesn't report are `unknown`. */
export function machineHere(): Machine {
  const flags = /^(?:flags|Features)\s*: (.*)$/m.exec(read('/proc/cpuinfo'))?.[1]?.split(' ') ?? []
  return {
    cpu: cpus()[0]?.model ?? arch(),
    features: flags.filter(flag => FEATURES.has(flag)),
    cores: availableParallelism(),
    caches: caches(),
    memory: `${(totalmem() / 2 ** 30).toFixed(1)} GiB`,
    hugePages: /\[(\w+)\]/.exec(read('/sys/kernel/mm/transparent_hugepage/enabled'))?.[1] ?? 'unknown',
    kernel: `${platform()} ${release()}`,
    rustc: spawnSync('rustc', ['--version'], { encoding: 'utf8' }).stdout?.trim() ?? 'unknown',
    load: (loadavg()[0] ?? 0).toFixed(2),
  }
}
