import type { Cuts } from '../../../lib/onnx/cuts.js'

/** The groups of a cache, as `Cuts` reads them: one that keeps all tokens, and one of this kind with so many blocks. */
export const groupsOf = (kind: string, totalBlocks: number, blockSize = 16): ConstructorParameters<typeof Cuts>[0] =>
  ({
    blockSize,
    groups: [{ kind: 'full' }, { kind }],
    stats: () => ({ pools: [{ totalBlocks: 1000 }, { totalBlocks }] }),
  }) as never
