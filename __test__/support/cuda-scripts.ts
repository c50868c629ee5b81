// The scripts of the CUDA build, which are JavaScript, with the types that their tests need.
import { execFileSync } from 'node:child_process'

import test, { type Implementation } from 'ava'

import type { GpuWorkload } from '../../bench/report/gpu-results.js'

export { folder } from './scripts.js'

/** A function that a library declares. */
export interface Declared {
  readonly name: string
  readonly returns: string
}

/** What a stub is made of. */
export interface Stub {
  readonly name: string
  readonly functions: readonly Declared[]
  readonly sonames: readonly string[]
  readonly absentCode: number
}

/** A compiler that can be built with. */
export interface Toolkit {
  readonly home: string
  readonly version: readonly [number, number]
}

/** A kernel, as the assembler made it. */
export interface Assembled {
  readonly name: string
  readonly registers: number
  readonly spilled: number
}

/** Tests that a program has run. */
export interface Counts {
  readonly passed: number
  readonly failed: number
  readonly skipped: number
}

/** What a part of a run on a GPU's machine has shown. */
export type RunPart = Partial<Counts> & { readonly name: string; readonly reason?: string }

/** Whether a GPU can be used, and why not. */
export interface Gpu {
  readonly usable: boolean
  readonly reason: string
}

/** What a program of `run.sh bench` has measured in a turn. */
export interface TurnReport {
  readonly machine: { readonly device: string; readonly details: readonly string[] } | null
  readonly workloads: readonly GpuWorkload[]
  readonly skipped: readonly { readonly id: string; readonly skipped: string }[]
  readonly failed: readonly { readonly id: string; readonly error: string }[]
}

/** Starts a program, and answers how it ended. */
export type RunProgram = (command: string, args: readonly string[], options?: { readonly env?: NodeJS.ProcessEnv }) => Promise<{ code: number; output: string }>

interface Scripts {
  readonly declarations: {
    functions(source: string): Declared[]
    statusCode(source: string, name: string): number
  }
  readonly libraries: {
    libraries(cudaMajor: number): { name: string; module: string; sonames: string[]; absent: string }[]
  }
  readonly stubs: {
    compileStub(folder: string, stub: Stub): string
    describeStubs(cudarc: string, cudaMajor: number): Stub[]
  }
  readonly toolkit: {
    toolkit(folder: string, given?: string): Promise<Toolkit>
    nvccVersion(text?: string): [number, number] | undefined
    cudarcVersion(version: readonly [number, number]): string
  }
  readonly home: { cudaHome(folder: string, toolkit: Toolkit, stubs: readonly Stub[]): string }
  readonly binary: {
    neededLibraries(dynamic: string): string[]
    glibcVersion(versionInfo: string): string | undefined
    ptxTargets(bytes: Buffer): string[]
    machineCode(bytes: Buffer): string[]
  }
  readonly ptxas: {
    assembled(text: string): Assembled[]
    table(files: readonly { file: string; gpu: string; kernels: readonly Assembled[] }[]): string
  }
  readonly 'carried/parts': {
    gpuOf(doctor: string): Gpu
    tapCounts(text: string): Counts
    rustCounts(text: string): Counts
    listedTests(text: string): number
    deviceTests(run: RunProgram, command: string, args: readonly string[], options: object): Promise<RunPart>
    kernelTests(run: RunProgram, programs: readonly string[], gpu: Gpu): Promise<RunPart>
    sanitized(run: RunProgram, programs: readonly string[], gpu: Gpu, sanitizer?: string): Promise<RunPart[]>
    summary(parts: readonly RunPart[], gpu: Gpu): { text: string; code: number }
  }
  readonly 'carried/turns': {
    asked(args: readonly string[]): { out: string; rounds: number; turns: number; only: string; python: string }
    turnsOf(programs: Readonly<Record<string, () => Promise<TurnReport>>>, turns: number): Promise<Record<string, TurnReport[]>>
    merged(
      reports: Readonly<Record<string, readonly TurnReport[]>>,
      of: { readonly turns: number; readonly rounds: number },
    ): Omit<TurnReport, 'machine'> & { readonly turns: number; readonly rounds: number; readonly machines: readonly NonNullable<TurnReport['machine']>[] }
  }
  readonly 'bench-program': { benchProgram(messages: string): string | undefined }
  readonly contents: {
    readonly CARRIED: readonly string[]
    readonly NODE: { readonly name: string; readonly version: string; readonly sha256: string }
    readonly IMPORTED: readonly string[]
    bundleName(version: string): string
    packageFolders(names: readonly string[], root: string): string[]
    isNeeded(file: string): boolean
    compiledPackage(manifest: unknown): unknown
    sizeLine(name: string, bytes: number): string
  }
  readonly 'kernel-tests': {
    testPrograms(messages: string): { name: string; file: string }[]
    countKernelTests(folder?: string): number
  }
  readonly requirements: {
    checkMachine(machine: { platform: string; arch: string; found: (program: string) => boolean }): void
  }
}

/** One of the files of `scripts/cuda`. */
export async function cudaScript<K extends keyof Scripts>(name: K): Promise<Scripts[K]> {
  return (await import(new URL(`../../scripts/cuda/${name}.mjs`, import.meta.url).href)) as Scripts[K]
}

/** Whether stubs can be compiled and run here. */
export function canCompile(): boolean {
  if (process.platform !== 'linux' || process.arch !== 'x64') return false
  try {
    for (const program of ['gcc', 'ar']) execFileSync(program, ['--version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

/** A test that compiles: skipped by its name where that cannot be done. */
export const compiling: (title: string, implementation: Implementation<[]>) => void = canCompile() ? test : test.skip
