// Planted faults of blocks, files and stores: counts of references, copies, sums, seals, connections, and calls that are refused half-way.
import { inside, tested } from './checks.mjs'

const BLOCKS = 'crates/kvtide-core/src/paged/pool/blocks.rs'
const INDEX = 'crates/kvtide-core/src/paged/index/prefix_index.rs'
const ENTRY = 'crates/kvtide-tiers/src/entry.rs'
const LINK = 'crates/kvtide-tiers/src/redis/link.rs'
const STATES = 'crates/kvtide-core/src/paged/sequence/content/states.rs'
const PAGES = 'crates/kvtide-files/src/pages.rs'

const entry = tested('tiers', 'folder::an_entry_is_what_was_asked_for_or_nothing')
const damaged = tested('files', 'damage::a_file_with_any_bit_turned')

export const storage = [
  {
    name: 'reference-count',
    fault: 'a block is free while another sequence holds it',
    file: BLOCKS,
    from: 'let left = self.drop_count(block);\n        if left > 0 {',
    to: 'let left = self.drop_count(block);\n        if left > 1 {',
    check: tested('paged_parts', 'blocks::random_calls_against_a_list'),
  },
  {
    name: 'retained-twice',
    fault: 'a second holder of a block is not counted',
    file: BLOCKS,
    from: '        self.order[block].number += 1;\n    }',
    to: '        self.order[block].number = 1;\n    }',
    check: tested('paged_parts', 'blocks::random_calls_against_a_list'),
  },
  {
    name: 'copy-on-write',
    fault: 'a write changes a block that another sequence holds',
    file: 'crates/kvtide-core/src/paged/plan/write_plan.rs',
    from: 'if held || state.tables.pool().index().key(block).is_some() {',
    to: 'if state.tables.pool().index().key(block).is_some() {',
    check: tested('paged_world', 'random_traces_against_sequences_apart'),
  },
  {
    name: 'compared-tokens',
    fault: 'a block is a hit if only its key is the same',
    file: INDEX,
    from: 'self.tokens(block) == tokens && self.has_extras(block, position, extras)',
    to: 'self.tokens(block).len() == tokens.len() && self.has_extras(block, position, extras)',
    check: tested('paged_parts', 'index::keys_'),
  },
  {
    name: 'compared-extras',
    fault: 'a block is a hit although its extras are others',
    file: INDEX,
    from: 'self.tokens(block) == tokens && self.has_extras(block, position, extras)',
    to: 'self.tokens(block) == tokens && (position != 0 || self.has_extras(block, position, extras))',
    check: tested('paged_parts', 'index::keys_'),
  },
  {
    name: 'freed-block',
    fault: 'a read in place shows what another sequence left in a block',
    file: 'crates/kvtide-tensor/src/paged/page_rows.rs',
    from: 'self.slabs.zero(slab, &holes.collect::<Vec<_>>())?;',
    to: 'drop(holes);',
    check: inside('kvtide-tensor', 'nothing_of_another_sequence_is_met_in_place'),
  },
  {
    name: 'refused-memory',
    fault: 'an allocation that a limit above refuses stays counted',
    file: 'crates/kvtide-tensor/src/base/memory.rs',
    from: 'self.used.fetch_sub(bytes, Ordering::Relaxed);\n        })?;',
    to: '})?;',
    check: inside('kvtide-tensor', 'what_does_not_fit_takes_nothing_anywhere'),
  },
  {
    name: 'refused-batch',
    fault: 'a batch of blocks that is refused has released some of them',
    file: 'crates/kvtide-core/src/paged/pool/block_pool.rs',
    from: 'handles[..place].iter().for_each(|named| self.blocks.undo_drop(named.index()));\n                return',
    to: 'return',
    check: tested('paged', 'pool::a_batch_with_a_bad_handle_is_refused_whole'),
  },
  {
    name: 'page-sum',
    fault: 'a damaged page of a file is loaded',
    file: PAGES,
    from: 'if XxHash3_64::oneshot(page) != *sum {',
    to: 'if XxHash3_64::oneshot(page) != *sum && page.is_empty() {',
    check: damaged,
  },
  {
    name: 'seal',
    fault: 'a damaged list of a file is loaded',
    file: PAGES,
    from: 'match u64::from_le_bytes(seal) == sum.finish() {',
    to: 'match u64::from_le_bytes(seal) == sum.finish() || !seal.is_empty() {',
    check: damaged,
  },
  {
    name: 'entry-sum',
    fault: 'a damaged entry is taken for whole',
    file: ENTRY,
    from: 'if XxHash3_64::oneshot(body) != u64::from_le_bytes(*sum) {',
    to: 'if body.is_empty() && XxHash3_64::oneshot(body) != u64::from_le_bytes(*sum) {',
    check: entry,
  },
  {
    name: 'entry-form',
    fault: 'an entry of another form is taken',
    file: ENTRY,
    from: 'is_some_and(|form| form != expected.form)',
    to: 'is_some_and(|form| form.is_empty())',
    check: entry,
  },
  {
    name: 'entry-group',
    fault: 'an entry of another group of layers is taken',
    file: ENTRY,
    from: '        && number(HEADER - 20) == usize::from(expected.group)\n',
    to: '',
    check: entry,
  },
  {
    name: 'entry-name',
    fault: 'an entry is taken whose tokens are not those of its key',
    file: ENTRY,
    from: 'let holds = name.holds();',
    to: 'let holds = name.holds() || !name.tokens.is_empty();',
    check: entry,
  },
  {
    name: 'entry-seal',
    fault: 'an entry that was not sealed with the secret is opened',
    file: 'crates/kvtide-tiers/src/envelope.rs',
    from: '(tag(secret, key, content) == blake3::Hash::from_bytes(*found)).then_some(content)?',
    to: '(tag(secret, key, content) == *found || !found.is_empty()).then_some(content)?',
    check: tested('envelope', 'what_was_not_sealed_with_the_secret_under_its_key_is_nothing'),
  },
  {
    name: 'key-of-seal',
    fault: 'a sealed entry is opened under another key',
    file: 'crates/kvtide-tiers/src/envelope.rs',
    from: 'update(key.as_bytes()).update(value);',
    to: 'update(value);',
    check: tested('envelope', 'what_was_not_sealed_with_the_secret_under_its_key_is_nothing'),
  },
  {
    name: 'abandoned-exchange',
    fault: 'a connection is used again after an exchange was given up',
    file: LINK,
    from: 'let unfinished = Unfinished { link: self, number };',
    to: 'let unfinished = Unfinished { link: self, number: u64::MAX };',
    check: tested('redis', 'abandoned::a_connection_is_not_used_again_after_an_exchange_was_given_up'),
  },
  {
    name: 'state-cut',
    fault: 'a sequence that goes back keeps the state after the tokens that it loses',
    file: STATES,
    from: '.map(|(at, slot)| (*at, slot));\n        self.length = length;',
    to: '.map(|(at, slot)| (*at, self.state(tables).unwrap_or(slot)));\n        self.length = length;',
    check: tested('simulation', 'workers_with_faults_follow_the_model'),
  },
  {
    name: 'state-ids',
    fault: 'a state that replaces another one lacks the ids of the block that has begun',
    file: STATES,
    from: 'tables.pool_mut().copy_ids(before, slot, kept);',
    to: 'let _ = before;',
    check: tested('simulation', 'workers_with_faults_follow_the_model'),
  },
]
