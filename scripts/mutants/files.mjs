// Planted faults of saved files: flushes and names that a save leaves out, or does in another order, temporary files that stay, and numbers that are believed.
import { tested } from './checks.mjs'

const SINK = 'crates/kvtide-files/src/sink.rs'
const SAVE = 'crates/kvtide-files/src/save.rs'
const PAGES = 'crates/kvtide-files/src/pages.rs'
const CONTAINER = 'crates/kvtide-files/src/container.rs'
const SEQUENCE = 'crates/kvtide-files/src/sequence.rs'
const CACHE = 'crates/kvtide-files/src/cache.rs'

const power = tested('files', 'power::power_that_fails_at_any_call')
const swept = tested('files', 'crash::temporary_files_that_were_left_behind_are_swept')
const leftOut = tested('files', 'caches::what_makes_room_during_a_save_is_left_out')
const forged = name => tested('files', `forged::${name}`)
const damage = name => tested('files', `damage::${name}`)
const fitting = damage('tensors_that_overlap_leave_a_hole_or_claim_more')

const flush = '        self.run("flush", |file, _| file.flush())?;\n'
const check =
  '        self.fs.check_target(&self.path).map_err(|reason| Error::io("write", &self.path, reason))?;\n        self.file = None;\n'
const rename =
  '        self.fs.rename(&self.temporary, &self.path).map_err(|reason| {\n            let _ = self.fs.remove(&self.temporary);\n            Error::io("rename", &self.path, reason)\n        })?;\n'

export const files = [
  { name: 'save-flush', fault: 'a file gets its name without a flush', file: SINK, from: flush, to: '', check: power },
  {
    name: 'save-order',
    fault: 'a file gets its name before its flush',
    file: SINK,
    from: flush + check + rename,
    to: rename + flush + check,
    check: power,
  },
  {
    name: 'save-folder',
    fault: 'the name of a file is not flushed',
    file: SINK,
    from: 'self.fs.flush_folder(folder).map_err(|reason| Error::io("flush", folder, reason))',
    to: 'self.fs.names(folder).map(drop).map_err(|reason| Error::io("flush", folder, reason))',
    check: power,
  },
  {
    name: 'save-temporary',
    fault: 'the temporary file of a save that fails stays',
    file: SINK,
    from: '            // A file that cannot be removed now is swept by a later save.\n            let _ = self.fs.remove(&self.temporary);\n',
    to: '',
    check: tested('files', 'crash::a_save_that_fails_leaves_the_old_file_and_nothing_else'),
  },
  {
    name: 'save-renamed',
    fault: 'the temporary file of a save that cannot be renamed stays',
    file: SINK,
    from: '            let _ = self.fs.remove(&self.temporary);\n            Error::io("rename"',
    to: '            Error::io("rename"',
    check: tested('files', 'power::a_call_that_fails_leaves_the_old_file_and_nothing_else'),
  },
  {
    name: 'save-target',
    fault: 'a save replaces what is no regular file',
    file: SINK,
    from: check,
    to: '        self.file = None;\n',
    check: tested('files', 'regular::a_target_that_becomes_something_else_meanwhile_stays'),
  },
  {
    name: 'save-sweep',
    fault: 'a save leaves the temporary files of killed processes',
    file: SINK,
    from: '        sweep_in(&*fs, path);\n',
    to: '',
    check: swept,
  },
  {
    name: 'sweep-age',
    fault: 'the temporary file of a save that is running is removed',
    file: SINK,
    from: 'age().is_some_and(|age| age > STALE)',
    to: 'age().is_some()',
    check: swept,
  },
  {
    name: 'sweep-name',
    fault: 'a file of another program is removed as a temporary one',
    file: SINK,
    from: 'own.len() == 16 && ',
    to: '',
    check: swept,
  },
  {
    name: 'save-evicted',
    fault: 'a file has blocks that were evicted during its save',
    file: SAVE,
    from: 'self.gone = cache.gone(found)?;',
    to: 'cache.gone(found)?;',
    check: leftOut,
  },
  {
    name: 'save-sums',
    fault: 'rows that move up in a file have the sums of those before them',
    file: PAGES,
    from: 'kept.extend(&self.sums[group][row as usize * layers..][..layers]);',
    to: 'kept.extend(&self.sums[group][kept.len()..][..layers]);',
    check: leftOut,
  },
  {
    name: 'file-version',
    fault: 'a file of a newer version is read as one of this version',
    file: PAGES,
    from: 'for (field, expected) in [("version", VERSION), ("kind", kind)] {',
    to: 'for (field, expected) in [("kind", kind)] {',
    check: damage('a_file_of_another_version_with_right_checksums'),
  },
  {
    name: 'forged-overlap',
    fault: 'tensors of a file that lie over each other are read',
    file: CONTAINER,
    from: 'if start != end || stop < start {',
    to: 'if start > end || stop < start {',
    check: fitting,
  },
  {
    name: 'forged-hole',
    fault: 'bytes between the tensors of a file are ignored',
    file: CONTAINER,
    from: 'if start != end || stop < start {',
    to: 'if start < end || stop < start {',
    check: fitting,
  },
  {
    name: 'forged-shape',
    fault: 'a tensor with fewer bytes than its shape has is read',
    file: CONTAINER,
    from: 'if info.bytes() != Some(stop - start) {',
    to: 'if info.bytes().is_none() {',
    check: fitting,
  },
  {
    name: 'forged-product',
    fault: 'the sizes of a tensor overflow, and it has no bytes',
    file: CONTAINER,
    from: 'bytes.checked_mul(size))',
    to: 'Some(bytes.wrapping_mul(size)))',
    check: fitting,
  },
  {
    name: 'forged-row',
    fault: 'a list that names a row outside of a file ends in a panic',
    file: SEQUENCE,
    from: 'saved.get_mut(row as usize).ok_or_else(|| outside("staged", row))?.staged',
    to: 'saved.get_mut(row as usize).expect("a row").staged',
    check: forged('sequences'),
  },
  {
    name: 'forged-ids',
    fault: 'a sequence is loaded with fewer ids than it has tokens',
    file: SEQUENCE,
    from: 'ids.len() < content.length as usize',
    to: 'ids.is_empty() && content.length > 0',
    check: damage('fewer_ids_than_tokens'),
  },
  {
    name: 'forged-capacity',
    fault: 'the capacity that a file claims is not looked at',
    file: CACHE,
    from: 'find(|&&blocks| blocks > COUNT_MAX)',
    to: 'find(|&&blocks| blocks == COUNT_MAX)',
    check: forged('caches'),
  },
  {
    name: 'load-evicts',
    fault: 'a damaged sequence evicts cached blocks before it is refused',
    file: SEQUENCE,
    from: '    if file.evicts(cache) {\n        file.verify(cache, watch)?;\n    }\n',
    to: '',
    check: damage('a_damaged_page_evicts_nothing'),
  },
  {
    name: 'load-rank',
    fault: 'with less capacity, a load skips the blocks that were used last',
    file: CACHE,
    from: 'rows[rows.len() - rows.len().min(free[group])..].to_vec()',
    to: 'rows[..rows.len().min(free[group])].to_vec()',
    check: tested('files', 'caches::'),
  },
]
