// The scripts that make the packages, which are JavaScript, with the types that their tests need.

/** A package.json, as far as packages are told apart by it. */
export interface Manifest {
  readonly name: string
  readonly version: string
  readonly main?: string
  readonly os?: readonly string[]
  readonly cpu?: readonly string[]
  readonly libc?: readonly string[]
  readonly scripts?: Readonly<Record<string, string>>
  readonly optionalDependencies?: Readonly<Record<string, string>>
  readonly peerDependencies?: Readonly<Record<string, string>>
  readonly peerDependenciesMeta?: Readonly<Record<string, { readonly optional: boolean }>>
  readonly imports?: Readonly<Record<string, unknown>>
  readonly napi?: { readonly targets: readonly string[] }
}

/** The package of an addon. */
export interface AddonPackage {
  readonly file: string
  readonly manifest: Manifest
  readonly readme: string
}

/** What an addon needs. */
export interface Measured {
  readonly bytes: number
  readonly glibc: string | undefined
  readonly libraries: readonly string[]
  readonly stripped: boolean
}

interface Scripts {
  readonly manifests: {
    platform(target: string): { suffix: string; os: string; cpu: string; libc?: string }
    rootManifest(manifest: Manifest): Manifest
    platformPackage(manifest: Manifest, target: string): AddonPackage
    cudaPackage(manifest: Manifest): AddonPackage
  }
  readonly contents: {
    filesOf(folder: string): string[]
  }
  readonly packages: {
    readonly repository: Manifest
    addonPackages(manifest: Manifest): AddonPackage[]
    report(packed: { made: readonly object[]; skipped: readonly string[] }): string
  }
  readonly addon: {
    checkMachine(machine: { platform: string; arch: string; found: (program: string) => boolean }): void
    measured(file: string): Measured
    addonLine(name: string, measured: Measured): string
  }
  readonly tried: {
    readonly PROGRAMS: readonly { readonly file: string }[]
    quickStart(): string
  }
  readonly runtimes: {
    readonly NODES: readonly { readonly node: { readonly version: string }; readonly npm: { readonly version: string } }[]
  }
}

/** One of the files of `scripts/pack`. */
export async function packScript<K extends keyof Scripts>(name: K): Promise<Scripts[K]> {
  return (await import(new URL(`../../scripts/pack/${name}.mjs`, import.meta.url).href)) as Scripts[K]
}
