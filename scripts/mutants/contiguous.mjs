// Planted faults of contiguous caches: buffers that grow, marks of branches, writes that make views stale, and snapshots.
import { tested } from './checks.mjs'

const CORE = 'crates/kvtide-core/src'
const EXECUTOR = 'crates/kvtide-tensor/src/contiguous/executor.rs'

const snapshots = tested('caches', 'snapshots::')

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
    check: snapshots,
  },
  {
    name: 'snapshot-rows',
    fault: 'rows of a snapshot are taken from the start of the memory that they were saved in',
    file: EXECUTOR,
    from: 'Run::new(run.start - patch.run.start, run.len), &held.buffer',
    to: 'Run::new(0, run.len), &held.buffer',
    check: snapshots,
  },
  {
    name: 'snapshot-moved',
    fault: 'a copy of a snapshot has the rows that were written over it',
    file: EXECUTOR,
    from: 'for patch in held.patches().iter().rev() {',
    to: 'for patch in held.patches().iter().rev().skip(1) {',
    check: snapshots,
  },
  {
    name: 'mark-ahead',
    fault: 'a mark is taken that is ahead of the tokens',
    file: `${CORE}/rollback.rs`,
    from: 'if mark.committed > self.committed {',
    to: 'if mark.committed > self.committed + 1 {',
    check: tested('contiguous', 'rollback::'),
  },
  {
    name: 'draft-child',
    fault: 'a transaction changes while its child is open',
    file: `${CORE}/drafts.rs`,
    from: 'if depth + 1 == self.open.len() { Ok(()) }',
    to: 'if depth < self.open.len() { Ok(()) }',
    check: tested('contiguous', 'drafts::'),
  },
  {
    name: 'draft-path',
    fault: 'a path is accepted whose nodes do not follow each other',
    file: `${CORE}/tree.rs`,
    from: 'Some(&parent) if i64::from(parent) != before => {',
    to: 'Some(&parent) if i64::from(parent) > before => {',
    check: tested('contiguous', 'drafts::'),
  },
]
