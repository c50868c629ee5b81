// The crates of this repository, as cargo is told of them in several places.

const packages = names => names.flatMap(name => ['-p', name])

/** What the network needs is a feature; with it they are compiled as for the addon of a checkout. */
const NET = ['--features', 'kvtide-remote/objects,kvtide-remote/redis,kvtide-router/zeromq']

const LIBRARIES = ['kvtide-core', 'kvtide-onnx', 'kvtide-remote', 'kvtide-router', 'kvtide-sample', 'kvtide-store', 'kvtide-tensor']

/** Crates that are published, but for the kernels of GPUs, which are compiled apart. */
export const libraries = [...packages(LIBRARIES), ...NET]

/** Everything whose tests run on any machine. */
export const tested = [...packages([...LIBRARIES, 'decoder', 'kvtide-bench', 'kvtide-bench-cuda']), ...NET]
