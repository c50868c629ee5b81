// Planted faults of contiguous caches: buffers that grow, marks of branches, writes that make views stale, and snapshots.
import { tested } from './checks.mjs'

const CORE = 'crates/kvtide-core/src'
const EXECUTOR = 'crates/kvtide-tensor/src/contiguous/executor.rs'

export const contiguous = [
  {
    name: 'growth',
    fault: 'a buffer that doubles loses its only token',
    file: `${CORE}/growable.rs`,
    from: '(grows && len > 0)',
    to: '(grows && len > 1)',
    check: tested('contiguous', 'growable::'),
  },
  {
    name: 'mark-branch',
    fault: 'a mark of a branch that was overwritten is taken',
    file: `${CORE}/rollback.rs`,
    from: 'written_since(mark.stamp, Run::new(0, mark.committed))',
    to: 'written_since(mark.stamp, Run::new(0, mark.committed / 2))',
    check: tested('contiguous', 'rollback::'),
  },
  {
    name: 'stale-sweep',
    fault: 'a write that goes on where the last one ended makes no view stale',
    file: `${CORE}/write_log.rs`,
    from: 'Ordering::Equal => shown.start.max(stamp.head).min(shown.end()),',
    to: 'Ordering::Equal => shown.end(),',
    check: tested('contiguous', 'write_log::'),
  },
  {
    name: 'snapshot-write',
    fault: 'an append overwrites rows that a snapshot shows',
    file: EXECUTOR,
    from: '        for write in plan.writes() {\n            save(buffer, write.target, budget, stats)?;\n        }\n',
    to: '        let _ = (&budget, &stats);\n',
    check: tested('caches', 'snapshots::'),
  },
]
