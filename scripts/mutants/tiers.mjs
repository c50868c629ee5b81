// Planted faults of tiers: the folder of a disk tier, prompts that are forgotten, and tiers that end while a store hangs.
import { inside, tested } from './checks.mjs'

const FOLDER = 'crates/kvtide-tiers/src/folder/mod.rs'
const HANDLES = 'crates/kvtide-tiers/src/folder/directory/by_handle.rs'
const FETCH = 'crates/kvtide-tiers/src/fetch.rs'
const OFFLOAD = 'crates/kvtide-tiers/src/offload.rs'
const TIERS = 'crates/kvtide-tiers/src/tiers.rs'

const folder = name => tested('tiers', `folder::${name}`)
const failing = inside('kvtide-tiers', 'failing::a_call_of_the_system_that_fails')
const limited = folder('over_the_limit_the_longest_unused_go')
const swept = folder('temporary_files_that_were_left_behind_are_swept')
const linked = folder('links_are_not_followed')
const forgotten = tested('tiers', 'forgetting::what_is_forgotten_at_any_point_is_found_no_more')
const ended = tested('tiers', 'ending::while_a_store_hangs_all_is_given_back_at_once')

export const tiers = [
  {
    name: 'folder-torn',
    fault: 'an entry that a crash cut short is never written again',
    file: FOLDER,
    from: 'Ok(about) if about.bytes == bytes.len() as u64 => return Ok(false),',
    to: 'Ok(_) => return Ok(false),',
    check: failing,
  },
  {
    name: 'folder-stored',
    fault: 'an entry that could not be written counts as stored',
    file: FOLDER,
    from: '                Err(reason) => {\n                    let shard',
    to: '                Err(reason) => {\n                    exist += 1;\n                    let shard',
    check: failing,
  },
  {
    name: 'folder-temporary',
    fault: 'the temporary file of an entry that could not be written stays',
    file: FOLDER,
    from: '        if written.is_err() {\n            let _ = shard.remove(&temporary);\n        }\n',
    to: '',
    check: failing,
  },
  {
    name: 'folder-sweep',
    fault: 'temporary files of processes that were killed stay in a folder',
    file: FOLDER,
    from: '        self.sweep();\n        if let Some',
    to: '        if let Some',
    check: swept,
  },
  {
    name: 'folder-age',
    fault: 'the temporary file of an entry that another process writes is removed',
    file: FOLDER,
    from: 'about.modified.elapsed().is_ok_and(|age| age > STALE)',
    to: 'about.modified.elapsed().is_ok()',
    check: swept,
  },
  {
    name: 'folder-order',
    fault: 'a folder does not evict the entries that were used longest ago',
    file: FOLDER,
    from: '        found.sort_by_key(|entry| entry.about.modified);\n',
    to: '        found.sort_by_key(|entry| std::cmp::Reverse(entry.about.modified));\n',
    check: limited,
  },
  {
    name: 'folder-usage',
    fault: 'a damaged count of a folder is believed',
    file: FOLDER,
    from: '(XxHash3_64::oneshot(count).to_le_bytes() == *sum).then(|| u64::from_le_bytes(*count))',
    to: '(sum.len() == count.len()).then(|| u64::from_le_bytes(*count))',
    check: limited,
  },
  {
    name: 'folder-removed',
    fault: 'entries that were removed stay counted',
    file: FOLDER,
    from: '        self.count(-(removed as i64));\n',
    to: '        self.count(0 * removed as i64);\n',
    check: folder('what_is_put_is_found_by_others'),
  },
  {
    name: 'folder-name',
    fault: 'a name that is no key leads out of a folder',
    file: FOLDER,
    from: '    if !StoreKey::is_key(name) {\n        return None;\n    }\n    let mut file',
    to: '    if name.len() < SHARD {\n        return None;\n    }\n    let mut file',
    check: folder('a_name_that_is_no_key_leads_nowhere'),
  },
  {
    name: 'folder-link',
    fault: 'an entry that is a link is read behind it',
    file: HANDLES,
    from: 'const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK)',
    to: 'const FILE: OFlags = OFlags::NOCTTY.union(OFlags::NONBLOCK)',
    check: linked,
  },
  {
    name: 'forgotten-memory',
    fault: 'prompts that are forgotten are restored from memory',
    file: OFFLOAD,
    from: '            top.memory.clear();\n',
    to: '            let _ = top.memory.usage();\n',
    check: tested('tiers', 'forgetting::what_is_forgotten_is_not_restored_from_memory'),
  },
  {
    name: 'forgotten-lower',
    fault: 'prompts that are forgotten are restored from the tiers below memory',
    file: OFFLOAD,
    from: '        self.is_forgotten.store(true, Ordering::Release);\n',
    to: '        let _ = &self.is_forgotten;\n',
    check: forgotten,
  },
  {
    name: 'forgotten-queue',
    fault: 'a store that hangs keeps queued blocks of prompts that are forgotten',
    file: OFFLOAD,
    from: '        self.queue.clear();\n',
    to: '        let _ = &self.queue;\n',
    check: tested('tiers', 'forgetting::what_is_forgotten_while_a_store_is_asked_is_not_written_there'),
  },
  {
    name: 'ended-queue',
    fault: 'a store that hangs keeps the queue of a cache that has ended',
    file: TIERS,
    from: '        inner.queue.end();\n',
    to: '',
    check: ended,
  },
  {
    name: 'ended-memory',
    fault: 'the memory of a cache that has ended is kept',
    file: TIERS,
    from: '            top.memory.end();\n',
    to: '            let _ = top.memory.usage();\n',
    check: ended,
  },
  {
    name: 'ended-restore',
    fault: 'a thread that waits for a store keeps the blocks of a restore that was dropped',
    file: FETCH,
    from: '            let values = store.get(&names, bytes_max, deadline);\n',
    to: '            let _work = self.work.upgrade();\n            let values = store.get(&names, bytes_max, deadline);\n',
    check: tested('tiers', 'ending::a_match_that_hangs_ends_with_its_tiers_and_holds_no_blocks'),
  },
]
