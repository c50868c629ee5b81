//! Random calls on two caches, with files between them, compared with a list of the tokens of each sequence.
//!
//! Appends, truncations, forks, snapshots and drafts, and sequences that are saved and loaded: a loaded sequence equals
//! the saved one to the bit, goes on in the same way, and its file contains nothing of truncated tokens.

use kvtide_core::Code;
use kvtide_core::model::LayerKind;
use kvtide_files::{Source, Watch, load_sequence, save_sequence_bytes};
use kvtide_tensor::{BeginOptions, DType, PagedKvCache, PromptOptions, View};

use crate::world::{Form, Random, append, append_draft, forms, number, seed, shown};

/// A token, and the position from which its rows are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    token: u32,
    position: u32,
}

#[derive(Clone, Debug)]
struct Chat {
    id: u64,
    cache: usize,
    rows: Vec<Row>,
    /// The tokens that were truncated.
    cut: Vec<Row>,
}

impl Chat {
    fn keep(&mut self, length: usize) {
        self.cut.extend(self.rows.drain(length..));
    }
}

struct World {
    form: Form,
    caches: [PagedKvCache; 2],
    chats: Vec<Chat>,
    random: Random,
    token: u32,
}

/// The number of sequences at a time.
const CHATS: usize = 6;

impl World {
    fn new(form: Form, seed: u64) -> Self {
        World { caches: [form.cache(), form.cache()], form, chats: Vec::new(), random: Random(seed), token: 0 }
    }

    fn tokens(&mut self, most: u32) -> Vec<u32> {
        let count = self.random.below(most);
        // Some tokens occur again and again, so that blocks are found.
        let first = if self.random.below(3) == 0 { 7_000 } else { self.token };
        self.token += count;
        (first..first + count).collect()
    }

    fn call(&mut self) {
        let of = self.random.below(CHATS as u32) as usize;
        if of >= self.chats.len() {
            let cache = self.random.below(2) as usize;
            let id = self.caches[cache].create_sequence().unwrap();
            return self.chats.push(Chat { id, cache, rows: Vec::new(), cut: Vec::new() });
        }
        match self.random.below(16) {
            0..5 => self.append(of),
            5..8 => self.truncate(of),
            8 => self.fork(of),
            9 => {
                let chat = self.chats.swap_remove(of);
                self.caches[chat.cache].drop_sequence(chat.id).unwrap();
            }
            10 | 11 => self.draft(of),
            12 => self.restore(of),
            _ => self.save(of),
        }
    }

    fn append(&mut self, of: usize) {
        let (tokens, are_known) = (self.tokens(10), self.random.below(4) > 0);
        let chat = &mut self.chats[of];
        let start = chat.rows.len() as u32;
        if append(&mut self.caches[chat.cache], chat.id, &tokens, are_known).is_ok() {
            chat.rows.extend((start..).zip(tokens).map(|(position, token)| Row { token, position }));
        }
    }

    fn truncate(&mut self, of: usize) {
        let length = self.random.below(self.chats[of].rows.len() as u32 + 1);
        let chat = &mut self.chats[of];
        // Refused if a window has dropped tokens that would be needed.
        if self.caches[chat.cache].truncate(chat.id, length).is_ok() {
            chat.keep(length as usize);
        }
    }

    fn fork(&mut self, of: usize) {
        if self.chats.len() < CHATS {
            let chat = self.chats[of].clone();
            let id = self.caches[chat.cache].fork(chat.id).unwrap();
            self.chats.push(Chat { id, ..chat });
        }
    }

    /// Drafts a chain, or a tree of which a path is accepted; sometimes a draft within the draft.
    fn draft(&mut self, of: usize) {
        let (tokens, are_known, keep) = (self.tokens(8), self.random.below(4) > 0, self.random.below(4));
        let (chat, random) = (&mut self.chats[of], &mut self.random);
        let cache = &mut self.caches[chat.cache];
        let id = cache.begin(chat.id, None, BeginOptions::default()).unwrap();
        let parents: Vec<i32> =
            (0..tokens.len() as i32).map(|node| node - 1 - random.below(2).min(node as u32) as i32).collect();
        let is_tree = keep == 0;
        let done = append_draft(cache, (chat.id, Some(id)), &tokens, are_known, is_tree.then_some(&parents));
        if done.is_err() {
            return cache.rollback(chat.id, id);
        }
        let start = chat.rows.len() as u32;
        let drafted = (start..).zip(tokens).map(|(position, token)| Row { token, position }).collect::<Vec<_>>();
        let (mut path, mut at) = (Vec::new(), -1);
        for (node, &parent) in parents.iter().enumerate() {
            if parent == at && random.below(4) > 0 {
                (at, path) = (node as i32, [&path[..], &[node as u32]].concat());
            }
        }
        let kept: Vec<u32> = match keep {
            0 => path,
            1 => Vec::new(),
            _ => (0..random.below(drafted.len() as u32 + 1)).collect(),
        };
        match keep {
            0 => cache.commit_path(chat.id, id, &kept).unwrap(),
            1 => cache.rollback(chat.id, id),
            _ => cache.commit(chat.id, id, Some(kept.len() as u64)).unwrap(),
        }
        chat.rows.extend(kept.iter().map(|&node| drafted[node as usize]));
        chat.cut.extend((0..).zip(&drafted).filter(|(node, _)| !kept.contains(node)).map(|(_, row)| *row));
    }

    /// Appends after a snapshot, and restores it.
    fn restore(&mut self, of: usize) {
        let Chat { id, cache, rows, .. } = self.chats[of].clone();
        let snapshot = self.caches[cache].snapshot(id).unwrap();
        for _ in 0..self.random.below(3) {
            self.truncate(of);
            self.append(of);
        }
        self.caches[cache].restore(id, &snapshot).unwrap();
        let chat = &mut self.chats[of];
        chat.keep(0);
        chat.rows = rows;
    }

    fn save(&mut self, of: usize) {
        let chat = self.chats[of].clone();
        let bytes = save_sequence_bytes(&mut self.caches[chat.cache], chat.id, &Watch::default()).unwrap();
        self.check_cut(&chat, &bytes);
        let into = self.random.below(2) as usize;
        let source = Source::bytes(bytes);
        let id = match load_sequence(&mut self.caches[into], source, PromptOptions::default(), &Watch::default()) {
            Ok(id) => id,
            Err(refusal) => return assert_eq!(refusal.code(), Code::OutOfBlocks, "{refusal}"),
        };
        let mut loaded = Chat { id, cache: into, ..chat.clone() };
        assert_eq!(
            shown(&mut self.caches[into], id),
            shown(&mut self.caches[chat.cache], chat.id),
            "what is loaded is what was saved"
        );
        if self.chats.len() < CHATS {
            self.chats.push(loaded);
            return self.go_on(of, self.chats.len() - 1);
        }
        std::mem::swap(&mut self.chats[of], &mut loaded);
        self.caches[loaded.cache].drop_sequence(loaded.id).unwrap();
    }

    /// Truncates and appends alike in the saved sequence and in the loaded one.
    fn go_on(&mut self, saved: usize, loaded: usize) {
        let (tokens, length) = (self.tokens(8), self.random.below(self.chats[saved].rows.len() as u32 + 1));
        let is_cut = self.random.below(2) == 0;
        let mut went_on = 0;
        for of in [saved, loaded] {
            let chat = &mut self.chats[of];
            let cache = &mut self.caches[chat.cache];
            if is_cut && cache.truncate(chat.id, length).is_ok() {
                chat.keep(length as usize);
            }
            let start = chat.rows.len() as u32;
            if append(cache, chat.id, &tokens, true).is_ok() {
                chat.rows.extend((start..).zip(&tokens).map(|(position, &token)| Row { token, position }));
                went_on += 1;
            }
        }
        let [one, other] = [saved, loaded].map(|of| self.chats[of].clone());
        if went_on == 2 && one.rows == other.rows {
            let shows = [one, other].map(|chat| shown(&mut self.caches[chat.cache], chat.id));
            assert_eq!(shows[0], shows[1], "what was loaded goes on as what was saved");
        }
    }

    /// Checks that a file contains nothing of truncated tokens.
    fn check_cut(&self, chat: &Chat, bytes: &[u8]) {
        let (dtype, dim) = (self.form.dtype, self.form.layers[0].head_dim);
        if self.form.formats.iter().any(|format| *format != dtype.page_format()) {
            return;
        }
        for &Row { token, position } in chat.cut.iter().rev().filter(|row| !chat.rows.contains(row)).take(3) {
            let row: Vec<u8> = (0..dim).flat_map(|at| number(dtype, [0, 0, position, token, at, dim])).collect();
            assert!(!bytes.windows(row.len()).any(|there| there == row), "token {token}, which was cut, is saved");
        }
    }

    fn check(&mut self) {
        self.caches.iter().for_each(|cache| cache.check_invariants().unwrap());
        for chat in self.chats.clone() {
            let cache = &mut self.caches[chat.cache];
            assert_eq!(cache.sequence_length(chat.id), chat.rows.len() as u32);
            let layers: Vec<_> = self.form.layers.clone();
            for (layer, of) in (0..).zip(&layers) {
                let (source, kind) = match of.kind {
                    LayerKind::SharedWith(source) => (source, layers[source as usize].kind),
                    kind => (layer, kind),
                };
                let kv = cache.gather(chat.id, layer).unwrap();
                for (part, (view, dim)) in [(&kv.k, of.head_dim), (&kv.v, of.value_head_dim)].into_iter().enumerate() {
                    self.form.check_rows(&chat, [source, dim], kind, part, view);
                }
            }
        }
    }
}

impl Form {
    /// Compares the content of a layer with the list, as closely as its format allows.
    fn check_rows(&self, chat: &Chat, [layer, dim]: [u32; 2], kind: LayerKind, part: usize, view: &View) {
        let [.., heads, there, _] = *view.shape() else { panic!("{:?}", view.shape()) };
        let dim_there = dim as usize;
        // Tokens that left a window come after its sinks, which fill their blocks.
        let sinks = match kind {
            LayerKind::Sliding { sinks, .. } => sinks.next_multiple_of(self.block_size) as usize,
            _ => 0,
        };
        let gap = chat.rows.len() - there;
        let rows = chat.rows.iter().enumerate().filter(|(at, _)| gap == 0 || *at < sinks || *at >= sinks + gap);
        let found = floats(view);
        for (at, (place, row)) in rows.enumerate() {
            let mut off = 0.;
            for head in 0..heads {
                for element in 0..dim {
                    let of = [layer, head as u32, row.position, row.token, element, dim];
                    let expected = float(self.dtype, &number(self.dtype, of));
                    off += (found[(head * there + at) * dim_there + element as usize] - expected).abs();
                }
            }
            let off = off / (heads * dim_there) as f32;
            let most = self.error_max(part);
            assert!(
                off <= most,
                "layer {layer}, position {place}, part {part}: off by {off} on average, {most} allowed"
            );
        }
    }

    /// Returns the largest mean error of a row, even after it was quantised several times.
    fn error_max(&self, part: usize) -> f32 {
        match self.formats[part].name() {
            _ if self.formats[part] == self.dtype.page_format() => 0.,
            "f16" => 0.001,
            "q8" => 0.03,
            "f8e4m3" => 0.08,
            _ => 0.25,
        }
    }
}

fn floats(view: &View) -> Vec<f32> {
    let (dtype, bytes) = (view.dtype(), view.to_bytes().unwrap());
    bytes.chunks_exact(dtype.bytes()).map(|one| float(dtype, one)).collect()
}

fn float(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()),
        DType::BF16 => f32::from_bits(u32::from(u16::from_ne_bytes(bytes.try_into().unwrap())) << 16),
        _ => {
            let bits = u16::from_ne_bytes(bytes.try_into().unwrap());
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
            let fraction = if exponent == 0 { fraction } else { fraction + 1024. };
            let size = fraction * 2f32.powi(exponent.max(1) - 25);
            if bits >> 15 == 1 { -size } else { size }
        }
    }
}

#[test]
fn sequences_that_are_saved_beside_cuts_forks_and_drafts() {
    let begin = seed();
    for (at, (name, form)) in (0..).zip(forms()) {
        for round in 0..40 {
            let own = begin.wrapping_add(1_000 * at + round);
            let mut world = World::new(form.clone(), own);
            for call in 0..60 {
                // A failure names the seed that repeats the run.
                let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    world.call();
                    world.check();
                }));
                assert!(failed.is_ok(), "{name}: call {call} of seed {own}; repeat with KVTIDE_SEED={begin}");
            }
        }
    }
}
