// Planted faults, each with the check that must catch it: `from` becomes `to` in a copy of the repository.
//
// `check` is a command line whose failure means that the fault was caught.
import { addons } from './addon.mjs'
import { calls } from './calls.mjs'
import { ava, fuzz, inside, tested } from './checks.mjs'
import { contiguous } from './contiguous.mjs'
import { files } from './files.mjs'
import { grammars } from './grammars.mjs'
import { identity } from './identity.mjs'
import { models } from './models.mjs'
import { network } from './network.mjs'
import { peers } from './peers.mjs'
import { schedules } from './schedules.mjs'
import { storage } from './storage.mjs'
import { stores } from './stores.mjs'
import { streamed } from './streams.mjs'
import { tiers } from './tiers.mjs'

const threads = ['node', 'scripts/concurrency.mjs']

export const mutants = [
  {
    name: 'pin',
    fault: 'the end of a background read is not ordered before the next write',
    file: 'crates/kvtide-tensor/src/base/life.rs',
    from: 'self.0.readers.fetch_sub(1, Ordering::Release)',
    to: 'self.0.readers.fetch_sub(1, Ordering::Relaxed)',
    check: threads,
  },
  {
    name: 'run',
    fault: 'a step that failed on another thread is not seen',
    file: 'crates/kvtide-tensor/src/base/life.rs',
    from: 'life.runs.fetch_sub(1, Ordering::Release)',
    to: 'life.runs.fetch_sub(1, Ordering::Relaxed)',
    check: threads,
  },
  {
    name: 'budget',
    fault: 'the bytes in use are computed from two loads of one number',
    file: 'crates/kvtide-tensor/src/base/memory.rs',
    from: 'self.used().saturating_sub(self.spared.load(Ordering::Relaxed))',
    to: 'self.used() - self.spared.load(Ordering::Relaxed).min(self.used())',
    check: threads,
  },
  {
    name: 'worker',
    fault: 'a worker of the pool is reserved twice',
    file: 'crates/kvtide-tensor/src/base/idle.rs',
    from: 'Some(idle - count)',
    to: 'Some(idle - count.min(1))',
    check: threads,
  },
  {
    name: 'notification',
    fault: 'a queued block does not wake the writer',
    file: 'crates/kvtide-tiers/src/queue.rs',
    from: '            self.changed.notify_all();\n        }\n        has_room',
    to: '        }\n        has_room',
    check: threads,
  },
  {
    name: 'wake',
    fault: 'a restore ends between the check of a waiter and its wait',
    file: 'crates/kvtide-tiers/src/waiters.rs',
    from: '        drop(self.lock());\n',
    to: '',
    check: threads,
  },
  {
    name: 'request-field',
    fault: 'a field that is null is read as an object',
    file: 'packages/serve/lib/requests/fields.ts',
    from: "typeof value === 'object' && value !== null && !Array.isArray(value)",
    to: "typeof value === 'object' && !Array.isArray(value)",
    check: ava('__test__/serve/mutated-bodies.test.ts'),
  },
  {
    name: 'added-token',
    fault: 'a tokenizer with an added token without a text is accepted',
    file: 'lib/text/token-bytes.ts',
    from: "typeof content !== 'string'",
    to: "typeof content === 'symbol'",
    check: ava('__test__/text/mutated-files.test.ts'),
  },
  {
    name: 'template-error',
    fault: 'the error of a chat template has no code',
    file: 'lib/text/template-run.ts',
    from: 'throw failedTemplate(messageOf(cause), cause)',
    to: 'throw cause',
    check: ava('__test__/text/mutated-files.test.ts'),
  },
  {
    name: 'panic',
    fault: 'a batch of events of a high rank ends the process',
    file: 'crates/kvtide-router/src/wire/decode.rs',
    from: 'let rank = if length > 2 { rank(reader)? } else { None };',
    to: 'let rank = if length > 2 { rank(reader)? } else { None };\n    assert!(rank.is_none_or(|rank| rank < 64));',
    check: fuzz('events'),
  },
  {
    name: 'table-block',
    fault: "a long row of a block table reads a block's neighbour",
    file: 'crates/kvtide-tensor/src/paged/page_rows.rs',
    from: '.map(|&block| block as u32);',
    to: '.map(|&block| (block as u32).saturating_sub(u32::from(length > 9)));',
    check: fuzz('tables'),
  },
  {
    name: 'thread-shares',
    fault: 'the shares of a short call depend on the number of threads',
    file: 'crates/kvtide-tensor/src/attention/bytes/split.rs',
    from: '.max(few_shares(groups, keys))',
    to: '.max(few_shares(groups, keys).min(crate::base::threads::threads().unwrap_or(1)))',
    check: tested('model', 'a_host_s_threads'),
  },
  {
    name: 'value-rotation',
    fault: 'sums of rotated values are not rotated back',
    file: 'crates/kvtide-tensor/src/attention/bytes/unit.rs',
    from: '        self.turn(false);\n',
    to: '',
    check: tested('attention', 'pages::pages_in_place'),
  },
  {
    name: 'value-minimums',
    fault: 'the minimums of rotated values are added after their sums were rotated back',
    file: 'crates/kvtide-tensor/src/attention/bytes/unit.rs',
    from: '        if self.is_turned {\n            self.add_bias();\n        }\n',
    to: '',
    check: tested('attention', 'pages::pages_in_place'),
  },
  {
    name: 'weight-tile',
    fault: 'the products of a tile of weights replace those of the tiles before it',
    file: 'crates/kvtide-tensor/src/linear/unit.rs',
    from: 'stride, sums, first > 0)',
    to: 'stride, sums, first > INNER)',
    check: tested('linear', 'long_rows'),
  },
  {
    name: 'packed-columns',
    fault: 'all columns of a panel of packed weights have the numbers of the first one',
    file: 'crates/kvtide-tensor/src/linear/packed.rs',
    from: 'line[column % PACKED * size..]',
    to: 'line[0..]',
    check: tested('linear', 'products_of_any'),
  },
  {
    name: 'packed-rows',
    fault: 'a group of rows is multiplied with the first columns of a panel alone',
    file: 'crates/kvtide-tensor/src/kernels/tile/packed.rs',
    from: 'out: a.out.add(first), ..a',
    to: 'out: a.out, ..a',
    check: tested('linear', 'products_of_any'),
  },
  {
    name: 'packed-parts',
    fault: 'the products of the first elements of a row are lost, if a panel is read in parts',
    file: 'crates/kvtide-tensor/src/kernels/tile/packed.rs',
    from: 'let adds = first > 0;',
    to: 'let adds = false;',
    check: tested('linear', 'long_rows'),
  },
  {
    name: 'weight-order',
    fault: 'a transposed weight of a head is read as if it were not',
    file: 'crates/kvtide-onnx/src/rewrite/head.rs',
    from: '(turn.input(0)?, !is_transposed)',
    to: '(turn.input(0)?, is_transposed)',
    check: tested('onnx', 'heads::the_product'),
  },
  {
    name: 'mapped-pages',
    fault: 'memory that was written to is given back as if it were a file of which there is a copy',
    file: 'crates/kvtide-tensor/src/base/mapped.rs',
    from: 'entry & IS_FILE != 0)',
    to: 'entry & IS_FILE != 1)',
    check: inside('kvtide-tensor', 'mapped'),
  },
  {
    name: 'config-period',
    fault: 'of each period of layers, the first one has no window instead of the last one',
    file: 'lib/onnx/windows.ts',
    from: '(layer + 1) % period !== 0',
    to: 'layer % period !== 0',
    check: ava('__test__/onnx/windows.test.ts'),
  },
  {
    name: 'block-zeros',
    fault: 'the odd blocks of a weight of 4 bits have the zero points of the even ones',
    file: 'crates/kvtide-tensor/src/linear/blocks.rs',
    from: 'byte >> (4 * (place % 2)) & 15',
    to: 'byte & 15',
    check: tested('blocks', 'each_number_of_rows'),
  },
  {
    name: 'block-rows',
    fault: 'the rows of later units are read from other places',
    file: 'crates/kvtide-tensor/src/linear/blocks.rs',
    from: 'unit.rows.start * shape.row()..',
    to: 'unit.rows.start / 2 * shape.row()..',
    check: tested('blocks', 'each_number_of_rows'),
  },
  {
    name: 'block-gate',
    fault: 'a gated product multiplies the products of its gate by themselves',
    file: 'crates/kvtide-tensor/src/linear/blocks.rs',
    from: 'multiply(self.products(), weights, products);',
    to: 'multiply(lines, weights, products);',
    check: tested('blocks', 'a_gated_product'),
  },
  {
    name: 'block-scales',
    fault: 'blocks that are unpacked together have the scales of the first one',
    file: 'crates/kvtide-tensor/src/kernels/blocks/tile.rs',
    from: 'of_panel.add(index * block_stride)',
    to: 'of_panel',
    check: tested('blocks', 'each_number_of_rows'),
  },
  {
    name: 'block-pairs',
    fault: 'two panels that are multiplied together are the first one twice',
    file: 'crates/kvtide-tensor/src/kernels/blocks/tile.rs',
    from: 'column(vector) / COLUMNS * panel_stride + column(vector) % COLUMNS * 4',
    to: 'column(vector) % COLUMNS * 4',
    check: tested('blocks', 'each_number_of_rows'),
  },
  {
    name: 'row-peak',
    fault: 'a row is drawn from with the peak of another one',
    file: 'crates/kvtide-sample/src/row.rs',
    from: 'peak.filter(|peak| logits.get(peak.token as usize) == Some(&peak.logit))',
    to: 'peak.filter(|peak| (peak.token as usize) < logits.len())',
    check: tested('sampling', 'a_peak_of_other_logits_is_not_used'),
  },
  ...calls,
  ...addons,
  ...identity,
  ...models,
  ...network,
  ...storage,
  ...stores,
  ...files,
  ...contiguous,
  ...tiers,
  ...peers,
  ...grammars,
  ...schedules,
  ...streamed,
]
