//! Reading and writing: what was not changed is the same, and no bytes make it panic.

mod support;

use kvtide_onnx::{Error, FileSource, Model, Segment, Source, Weights};
use proptest::prelude::*;

fn cases() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

#[test]
fn a_model_that_was_not_changed_is_written_as_it_was() {
    for graph in support::GRAPHS {
        let bytes = support::bytes(graph);
        let model = Model::read(&bytes).expect(graph);
        assert!(model.to_bytes(&bytes, Weights::Inline).unwrap() == bytes, "{graph}");
    }
}

#[test]
fn a_file_reads_as_its_bytes_do() {
    let bytes = support::bytes("onnx");
    let file = FileSource::new(std::fs::File::open(support::path("onnx")).unwrap()).unwrap();
    assert_eq!(Model::read(&file).unwrap(), Model::read(&bytes).unwrap());
}

#[test]
fn weights_stay_where_they_are() {
    let bytes = support::bytes("onnx-gqa-f32");
    let model = Model::read(&bytes).unwrap();
    let segments = model.segments(&bytes, Weights::Inline).unwrap();
    let own: usize = segments.iter().map(|segment| if let Segment::Own(own) = segment { own.len() } else { 0 }).sum();
    assert!(own < bytes.len() / 8, "{own} bytes were copied");
    assert_eq!(segments.size(), bytes.len() as u64);
}

#[test]
fn references_into_the_model_make_a_small_graph() {
    let bytes = support::bytes("onnx-gqa-f32");
    let model = Model::read(&bytes).unwrap();
    let small = model.to_bytes(&bytes, Weights::External("model.onnx")).unwrap();
    assert!(small.len() < bytes.len() / 8, "{} bytes", small.len());
    let again = Model::read(&small).unwrap();
    assert_eq!(again.to_bytes(&small, Weights::External("model.onnx")).unwrap(), small);
}

#[test]
fn a_graph_that_needs_more_memory_than_allowed_is_refused() {
    let bytes = support::bytes("onnx");
    assert!(matches!(Model::read_within(&bytes, 10_000), Err(Error::TooLarge { limit: 10_000, .. })));
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_is_an_error() {
    struct Short(Vec<u8>);
    impl Source for Short {
        fn size(&self) -> u64 {
            2 * self.0.len() as u64
        }
        fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
            self.0.read_at(offset, bytes)
        }
    }
    assert!(matches!(Model::read(&Short(support::bytes("onnx"))), Err(Error::Read { .. })));
}

#[test]
fn every_prefix_is_refused() {
    let bytes = support::bytes("onnx-gqa-f32-ext");
    for length in (0..bytes.len() - 40).step_by(7) {
        assert!(Model::read(&bytes[..length].to_vec()).is_err(), "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Model::read_within(&bytes, 1 << 20);
    }

    #[test]
    fn a_model_with_some_bytes_changed_is_read_or_refused(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        inserted in proptest::collection::vec(any::<u8>(), 0..4),
    ) {
        let mut bytes = support::bytes("onnx-gqa-f32-ext");
        for (index, byte) in &changes {
            let index = index.index(bytes.len());
            bytes[index] = *byte;
        }
        let at = changes[0].0.index(bytes.len());
        bytes.splice(at..at, inserted);
        if let Ok(model) = Model::read_within(&bytes, 8 << 20) {
            let written = model.to_bytes(&bytes, Weights::Inline).unwrap();
            Model::read(&written).unwrap();
        }
    }
}
