//! Checks that a call reaches nothing outside its memory, before anything is launched.

use super::rows::{Attend, AttendKeys, AttendStem, HeadRows, PageMemory, RowFormat, STAGED, Words};

/// Panics if something does not fit; callers have checked the arguments of users before.
pub(super) fn check(call: &Attend<'_>) {
    call.out.check_writable();
    call.lse.check_writable();
    assert!(
        call.sizes.kv_heads > 0 && call.sizes.query_heads.is_multiple_of(call.sizes.kv_heads),
        "heads in whole groups"
    );
    let queries: usize = call.sequences.iter().map(|of| of.queries).sum();
    let rows = queries * call.sizes.query_heads;
    assert!(rows * call.queries.format.row_bytes(call.sizes.dims()[1]) <= call.out.bytes(), "the output has room");
    assert!(rows * 4 <= call.lse.bytes(), "the sums have room");
    for of in call.sequences {
        assert!(of.first_query + of.queries <= queries, "queries in the list of all");
        assert!(of.queries < 1 << 24 && of.key_count() < 1 << 31, "counts of 31 bits");
        assert!(call.sizes.is_ragged || of.queries == call.sequences[0].queries, "as many queries each");
    }
    let last_query = if call.sizes.is_ragged { queries } else { call.sequences.first().map_or(0, |of| of.queries) };
    let batches = if call.sizes.is_ragged { 1 } else { call.sequences.len() };
    check_rows(&call.queries, batches, call.sizes.query_heads, last_query, call.sizes.dims()[0]);
    check_rules(call, queries);
    check_stems(call, queries);
    match &call.keys {
        AttendKeys::Rows { k, v } => {
            let end = |of: &super::rows::AttendSequence| of.first_key + of.key_count();
            let tokens = call.sequences.iter().map(end).max().unwrap_or(0);
            for (rows, dim) in [k, v].into_iter().zip(call.sizes.dims()) {
                assert!(!rows.format.is_low_bit(), "rows of floats");
                check_rows(rows, batches, call.sizes.kv_heads, tokens, dim);
            }
        }
        AttendKeys::Pages { slab, staging, block_size, tables, tails, .. } => {
            assert!(*block_size > 0, "blocks of tokens");
            for pages in [slab, staging].into_iter().filter(|pages| pages.blocks > 0) {
                check_pages(call, pages, *block_size);
            }
            check_tables(call, [slab, staging], *block_size, tables, tails);
        }
    }
}

fn check_rows(rows: &HeadRows<'_>, batches: usize, heads: usize, tokens: usize, dim: usize) {
    let [(first, count), (second, more)] = rows.pieces;
    assert!(count < 1 << 31 && count + more >= tokens, "pieces with all tokens");
    if batches == 0 || tokens == 0 {
        return;
    }
    for (start, tokens) in [(first, count.min(tokens)), (second, tokens.saturating_sub(count))] {
        if tokens > 0 {
            let last = start + (batches - 1) * rows.batch + (heads - 1) * rows.head + (tokens - 1) * rows.token;
            assert!(last + rows.format.row_bytes(dim) <= rows.memory.bytes(), "rows reach outside their memory");
        }
    }
}

fn check_rules(call: &Attend<'_>, queries: usize) {
    let each = call.sequences.first().map_or(0, |of| of.queries);
    let shared = call.sequences.iter().all(|of| of.queries == each);
    if let Some(positions) = call.positions {
        let fits = positions.len() == queries || (shared && positions.len() == each);
        assert!(fits, "a position for each query");
    }
    for of in call.sequences.iter().filter(|of| of.nodes > 0) {
        let trees = call.trees.expect("the trees of sequences that have nodes");
        let ([depths, bits], nodes) = (of.tree, of.nodes);
        assert!(depths + nodes <= trees.depths.len(), "a depth for each node");
        assert!(bits + nodes * nodes.div_ceil(64) <= trees.seen.len(), "a bit for each pair of nodes");
        assert!(nodes <= of.key_count(), "nodes are the last keys");
        assert!(of.first_node + of.queries as i64 <= nodes as i64, "queries that are nodes of the tree");
        assert!(of.first_node > -(1 << 24), "a first node of 24 bits");
    }
    for numbers in [call.rules.sink_logits, call.rules.alibi_slopes].into_iter().flatten() {
        assert!(numbers.len() == call.sizes.query_heads, "a number for each query head");
    }
    if let Some(mask) = call.mask {
        let keys = call.sequences.iter().map(|of| of.key_count()).max().unwrap_or(0);
        let sizes = [call.sequences.len(), call.sizes.query_heads, each, keys];
        if !sizes.contains(&0) {
            assert!(shared, "a mask for sequences of one length");
            let last: usize = sizes.iter().zip(mask.strides).map(|(size, stride)| (size - 1) * stride).sum();
            assert!(
                last + 4 <= mask.memory.bytes() && mask.strides.iter().all(|bytes| bytes % 4 == 0),
                "a mask's reach"
            );
        }
    }
}

fn check_stems(call: &Attend<'_>, queries: usize) {
    if call.stems.is_empty() {
        return;
    }
    assert!(matches!(call.keys, AttendKeys::Pages { .. }), "stems of pages");
    assert!(call.mask.is_none(), "stems of sequences that see all of them");
    let each = call.sequences.first().map_or(0, |of| of.queries);
    let ends = if call.sizes.is_ragged { [1, queries] } else { [call.sequences.len(), each] };
    for stem in call.stems {
        assert!(stem.keys.is_multiple_of(AttendStem::GRAIN) && stem.keys > 0, "stems of whole tiles");
        for &(sequence, first_query) in &stem.members {
            let of = &call.sequences[sequence];
            assert!(first_query + of.queries <= stem.queries.len(), "queries of the stem");
            assert!(stem.keys <= of.key_count(), "keys that its members have");
        }
        let known = stem.queries.iter().all(|at| (at[0] as usize) < ends[0] && (at[1] as usize) < ends[1]);
        assert!(known, "queries of the call");
        let is_placed = call.rules.alibi_slopes.is_none() || stem.positions.len() == stem.queries.len();
        assert!(is_placed, "a position for each query of a stem");
        assert!(stem.keys <= call.sequences[stem.sequence].key_count(), "keys of a table");
    }
}

fn check_pages(call: &Attend<'_>, pages: &PageMemory<'_>, block_size: usize) {
    assert!(pages.blocks < 1 << 31, "blocks of 31 bits");
    for (part, (section, dim)) in pages.sections.iter().zip(call.sizes.dims()).enumerate() {
        let codes = section.format.row_bytes(dim) * block_size;
        let scales = section.format.scale_bytes(part, block_size, dim);
        assert!(
            codes <= section.head && section.codes + call.sizes.kv_heads * section.head <= pages.page,
            "heads in their page"
        );
        if scales > 0 && dim > 0 {
            assert!(scales <= section.scale_head, "scales of a head");
            assert!(section.scales + call.sizes.kv_heads * section.scale_head <= pages.page, "scales in their page");
            let align = if section.format == RowFormat::Q8 { 2 } else { 4 };
            let starts =
                [pages.memory.address() as usize, pages.first, pages.block, section.scales, section.scale_head];
            assert!(starts.iter().all(|start| start % align == 0), "scales where they can be read at once");
        }
    }
    let last = pages.first + (pages.blocks - 1) * pages.block;
    assert!(last + pages.page <= pages.memory.bytes(), "pages reach outside their memory");
}

fn check_tables(call: &Attend<'_>, pages: [&PageMemory<'_>; 2], block_size: usize, tables: &Words<'_>, tails: &[u32]) {
    let known = |&entry: &u32| ((entry & !STAGED) as usize) < pages[(entry >> 31) as usize].blocks;
    for of in call.sequences {
        let blocks = of.key_count().div_ceil(block_size);
        let (from, place) = of.tail.unwrap_or((blocks, 0));
        let blocks = if from < blocks {
            assert!(tails[place..][..blocks - from].iter().all(known), "blocks of the slab");
            from
        } else {
            blocks
        };
        let end = of.table + blocks;
        match tables {
            _ if blocks == 0 => {}
            Words::Device(span) => assert!(4 * end <= span.bytes() && pages[0].blocks > 0, "a table for each sequence"),
            Words::Host(entries) => {
                assert!(entries[of.table..end].iter().all(known), "blocks of the slab");
            }
        }
    }
}
