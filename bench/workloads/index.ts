// The workloads of the TypeScript API, one file each. A new one is a file here and a line below.
import type { Skipped, Workload } from '../report.js'
import { attentionOverCaches } from './attention.js'
import { growable } from './growable.js'
import { paged } from './paged.js'
import { prepare } from './prepare.js'
import { rollback } from './rollback.js'
import { rotating } from './rotating.js'
import { step } from './step.js'
import { view } from './view.js'

/** Every workload by its id, in the order of the report; each takes the number of rounds. */
export const WORKLOADS: Readonly<Record<string, (rounds: number) => Workload | Promise<Workload | Skipped>>> = {
  'js-rotating': rounds => rotating([512, 4096, 32768], rounds),
  'js-growable': rounds => growable(2048, rounds),
  'js-rollback': rounds => rollback(4096, rounds),
  'js-paged': rounds => paged(2048, rounds),
  'js-step': rounds => step(1024, rounds),
  'js-prepare': rounds => prepare({ sequences: 1000, blocks: 512 }, rounds),
  'js-view': rounds => view(4096, rounds),
  'js-attention': rounds => attentionOverCaches(8192, rounds),
}
