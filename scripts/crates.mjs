// The lists of this repository's crates that scripts pass to cargo.

const packages = names => names.flatMap(name => ['-p', name])

/** The features for grammars and the network, with which the crates are compiled as for the addon of a checkout. */
const NET = ['--features', 'kvtide-sample/grammar,kvtide-tiers/objects,kvtide-tiers/redis,kvtide-router/zeromq']

const LIBRARIES = [
  'kvtide-core',
  'kvtide-files',
  'kvtide-onnx',
  'kvtide-router',
  'kvtide-sample',
  'kvtide-tensor',
  'kvtide-tiers',
]

/** The published crates, except the GPU kernels, which are compiled separately. */
export const libraries = [...packages(LIBRARIES), ...NET]

/** All crates whose tests run on any machine. */
export const tested = [
  ...packages([
    ...LIBRARIES,
    'decoder',
    'routing',
    'kvtide-bench',
    'kvtide-bench-cuda',
    'kvtide-bench-pool',
    'kvtide-bench-states',
  ]),
  ...NET,
]
