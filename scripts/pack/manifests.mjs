// Makes the package.json of each published package, from the repository's and from facts about its platform.
//
// The platform packages are optional dependencies of the packed package alone: in the repository, npm ci would look for versions
// that aren't published yet. All packages have one version, and depend on each other in exactly that version.
import { parseTriple } from '@napi-rs/cli'

const CUDA_TARGET = 'x86_64-unknown-linux-gnu'

/** Returns npm's names of a target: `{ suffix: 'linux-x64-gnu', os: 'linux', cpu: 'x64', libc: 'glibc' }`. */
export function platform(target) {
  const { platformArchABI: suffix, platform: os, arch: cpu, abi } = parseTriple(target)
  if (os === undefined) throw new Error(`npm has no name for the system of the target ${target}`)
  return { suffix, os, cpu, ...(os === 'linux' && { libc: abi === 'gnu' ? 'glibc' : abi }) }
}

/** Fields about the owner and the source of a package, which are the same in all of them. */
const SHARED = ['license', 'author', 'homepage', 'repository', 'bugs', 'funding']

/** The manifest of a package over kvtide, as it is published. */
export function overManifest(manifest) {
  return Object.fromEntries(Object.entries(manifest).filter(([field]) => !OURS.has(field)))
}

/** Fields of the repository's package.json that users of the package don't need: above all scripts, because nothing may run on installation. */
const OURS = new Set(['private', 'files', 'napi', 'scripts', 'ava', 'devDependencies', 'overrides'])

export function rootManifest(manifest) {
  const { version, napi, imports } = manifest
  const kept = Object.entries(manifest).filter(([field]) => !OURS.has(field))
  const { '#binding': _, ...imported } = imports
  const taken = [cudaPackage(manifest), ...napi.targets.map(target => netPackage(manifest, target))]
    .map(({ manifest: { name } }) => name)
    .sort()
  return {
    ...Object.fromEntries(kept),
    imports: imported,
    optionalDependencies: Object.fromEntries(
      napi.targets.map(target => [`kvtide-${platform(target).suffix}`, version]).sort(),
    ),
    // Used if it is installed, never installed automatically. As a peer dependency it is found with any package manager, in this version alone.
    peerDependencies: { ...manifest.peerDependencies, ...Object.fromEntries(taken.map(name => [name, version])) },
    peerDependenciesMeta: {
      ...manifest.peerDependenciesMeta,
      ...Object.fromEntries(taken.map(name => [name, { optional: true }])),
    },
  }
}

export function platformPackage(manifest, target) {
  const { suffix } = platform(target)
  return addonPackage(manifest, target, `kvtide-${suffix}`, `kvtide.${suffix}.node`, {
    description: `The native addon of kvtide for ${suffix}`,
    about:
      'It is installed together with [kvtide](https://github.com/kvtide/kvtide), which loads the addon of the system. Do not import it yourself.',
  })
}

/** The package of the addon with the network, which is twice as large, for sharing stores and publishing events. */
export function netPackage(manifest, target) {
  const { suffix } = platform(target)
  const name = `kvtide-net-${suffix}`
  return addonPackage(manifest, target, name, `kvtide-net.${suffix}.node`, {
    description: `The native addon of kvtide with Redis, object stores and ZeroMQ for ${suffix}`,
    about: `Install it next to [kvtide](https://github.com/kvtide/kvtide) in the same version, and kvtide loads it:

\`\`\`sh
npm install kvtide@${manifest.version} ${name}@${manifest.version}
\`\`\``,
  })
}

export function cudaPackage(manifest) {
  const { suffix } = platform(CUDA_TARGET)
  const name = `kvtide-cuda-${suffix}`
  return addonPackage(manifest, CUDA_TARGET, name, `kvtide-cuda.${suffix}.node`, {
    description: `The native addon of kvtide with CUDA for ${suffix}`,
    about: `Install it next to [kvtide](https://github.com/kvtide/kvtide) in the same version, and kvtide loads it, unless \`KVTIDE_DEVICE\` is \`cpu\`:

\`\`\`sh
npm install kvtide@${manifest.version} ${name}@${manifest.version}
\`\`\`

GPUs need NVIDIA's driver and CUDA's libraries. Without them it runs on the CPU, and \`npx kvtide doctor\` says what is missing.`,
  })
}

function addonPackage(manifest, target, name, file, { description, about }) {
  const { suffix: _, ...asked } = platform(target)
  const shared = SHARED.filter(field => field in manifest).map(field => [field, manifest[field]])
  const own = Object.fromEntries(Object.entries(asked).map(([field, value]) => [field, [value]]))
  return {
    file,
    manifest: {
      name,
      version: manifest.version,
      description,
      ...Object.fromEntries(shared),
      main: file,
      ...own,
      engines: manifest.engines,
    },
    readme: `# ${name}\n\n${description}. ${about}\n`,
  }
}
