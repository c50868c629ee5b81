//! Reading and writing: unchanged fields stay the same, and no bytes cause a panic.

use kvtide_onnx::{Error, FileSource, Model, Segment, Source, Weights};
use proptest::prelude::*;

use crate::support;
use crate::support::build::{Attr, BOOL, F32, Graph, Message};

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
fn the_accuracy_level_of_products_is_set_in_branches_too() {
    let product = |graph: &mut Graph, attributes: &[Attr]| {
        let sizes = [Attr::Int("bits", 4), Attr::Int("K", 32), Attr::Int("N", 16), Attr::Int("block_size", 32)];
        graph.node("com.microsoft.MatMulNBits", &["rows", "codes", "scales"], &[&sizes[..], attributes].concat())
    };
    let mut graph = Graph::default();
    graph.input("which", BOOL, &[]);
    for name in ["rows", "codes", "scales"] {
        graph.input(name, F32, &[]);
    }
    let branch = |name: &str, attributes: &[Attr]| {
        let mut inner = Graph::default();
        product(&mut inner, attributes);
        inner.fields.clone().text(2, name)
    };
    let branches = [
        Attr::Graph("then_branch", branch("then", &[Attr::Int("accuracy_level", 0)])),
        Attr::Graph("else_branch", branch("else", &[Attr::Int("accuracy_level", 4)])),
    ];
    graph.node("If", &["which"], &branches);
    product(&mut graph, &[]);
    product(&mut graph, &[Attr::Int("accuracy_level", 4)]);
    let bytes = graph.model(21);
    for (level, other) in [(4, 0), (0, 4)] {
        let mut model = Model::read(&bytes).unwrap();
        assert!(model.set_accuracy_level(level));
        let written = model.to_bytes(&bytes, Weights::Inline).unwrap();
        let count = |level: u8| {
            let attribute = [b"accuracy_level\x18", &[level][..]].concat();
            written.windows(attribute.len()).filter(|window| *window == attribute).count()
        };
        // A product without a level has level 0.
        assert_eq!([count(level), count(other)], [if level == 4 { 4 } else { 3 }, 0]);
        let mut again = Model::read(&written).unwrap();
        assert!(!again.set_accuracy_level(level));
        assert!(again.to_bytes(&written, Weights::Inline).unwrap() == written);
    }
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
fn weights_that_differ_give_other_samples() {
    let samples_of = |path: &std::path::Path| {
        let file = FileSource::open(path).unwrap();
        Model::read(&file).unwrap().samples(&file)
    };
    let inside = samples_of(&support::path("onnx-gqa-f32")).unwrap();
    let beside = support::path("onnx-gqa-f32-ext");
    assert_eq!(samples_of(&beside).unwrap(), inside, "the same weights in another file");
    let folder = std::env::temp_dir().join(format!("kvtide-samples-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [model, data] = ["model.onnx", "model.onnx.data"].map(|name| folder.join(name));
    std::fs::copy(&beside, &model).unwrap();
    let mut weights = std::fs::read(beside.with_file_name("model.onnx.data")).unwrap();
    assert!(inside.len() < weights.len() / 2, "{} bytes of {}", inside.len(), weights.len());
    // Training changes numbers everywhere: here a bit in each of a thousand.
    weights.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
    std::fs::write(&data, &weights).unwrap();
    assert_ne!(samples_of(&model).unwrap(), inside);
    std::fs::remove_file(&data).unwrap();
    assert!(samples_of(&model).is_err(), "weights that are not there");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_with_weights_are_looked_at() {
    let folder = std::env::temp_dir().join(format!("kvtide-onnx-weights-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let bytes = support::bytes("onnx-gqa-f32-ext");
    let path = folder.join("model.onnx");
    std::fs::write(&path, &bytes).unwrap();
    let check = || {
        let source = FileSource::open(&path).unwrap();
        Model::read(&source).unwrap().check_weights(&source)
    };
    let Err(Error::Weights { file, tensor, expected }) = check() else { panic!("no file, and no refusal") };
    assert_eq!(file, "model.onnx.data");
    assert!(!tensor.is_empty() && expected.starts_with("a file that can be read"), "{expected}");
    let data = std::fs::read(support::path("onnx-gqa-f32-ext").with_file_name("model.onnx.data")).unwrap();
    std::fs::write(folder.join("model.onnx.data"), &data).unwrap();
    let [(name, used)] = check().unwrap().try_into().unwrap();
    assert_eq!((name.as_str(), used), ("model.onnx.data", data.len() as u64));
    std::fs::write(folder.join("model.onnx.data"), &data[..data.len() - 1]).unwrap();
    let error = check().unwrap_err();
    assert!(error.to_string().contains(&format!("at least {used} bytes, not {}", used - 1)), "{error}");
    // Bytes have no folder: what lies beside them is not known.
    assert_eq!(Model::read(&bytes).unwrap().check_weights(&bytes).unwrap(), [("model.onnx.data".to_owned(), used)]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ports_are_those_that_a_caller_sees() {
    let bytes = support::bytes("onnx");
    let model = Model::read(&bytes).unwrap();
    let names: Vec<String> = model.inputs().into_iter().map(|port| port.name).collect();
    assert_eq!(names[..3], ["input_ids", "attention_mask", "position_ids"].map(String::from));
    assert_eq!(names.len(), 9);
    let logits = model.outputs().into_iter().find(|port| port.name == "logits").unwrap();
    assert_eq!((logits.element.as_str(), logits.dims.len()), ("f32", 3));
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

/// Bytes, then zeros, then bytes.
struct Hollow {
    front: Vec<u8>,
    zeros: u64,
    back: Vec<u8>,
}

impl Source for Hollow {
    fn size(&self) -> u64 {
        self.front.len() as u64 + self.zeros + self.back.len() as u64
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let back = self.front.len() as u64 + self.zeros;
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = offset + index as u64;
            let found = match at.checked_sub(back) {
                Some(behind) => self.back.get(behind as usize).copied(),
                None => Some(self.front.get(at as usize).copied().unwrap_or(0)),
            };
            *byte = found.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[test]
fn weights_of_many_gibibytes_are_not_touched() {
    let zeros = 5 << 30;
    let tensor = [vec![0x08], varint(zeros / 4), vec![0x10, 0x01, 0x42, 0x01, b'w', 0x4a], varint(zeros)].concat();
    let node = Message::default().text(1, "w").text(2, "out").text(4, "Identity").0;
    let back = Message::default().bytes(1, &node).bytes(12, &Message::default().text(1, "out").0).0;
    let inner = [vec![0x2a], varint(tensor.len() as u64 + zeros), tensor].concat();
    let length = inner.len() as u64 + zeros + back.len() as u64;
    let source = Hollow { front: [vec![0x3a], varint(length), inner].concat(), zeros, back };
    let model = Model::read(&source).unwrap();
    let segments = model.segments(&source, Weights::Inline).unwrap();
    assert_eq!(segments.size(), source.size());
    assert!(segments.iter().any(|segment| matches!(segment, Segment::Source(span) if span.length >= zeros)));
    let small = model.to_bytes(&source, Weights::External("model.onnx")).unwrap();
    assert!(small.len() < 200);
    assert!(Model::read(&small).is_ok());
}

/// A model with one weight.
fn with_tensor(tensor: Message) -> Vec<u8> {
    Message::default().bytes(7, &Message::default().bytes(5, &tensor.0).0).0
}

#[test]
fn malformed_models_are_refused_where_they_are_wrong() {
    let refused = |bytes: Vec<u8>, expected: &str| {
        let error = Model::read(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} should say: {expected}");
    };
    refused(Vec::new(), "expected a graph");
    refused(vec![0x3b], "wire type 0, 1, 2 or 5 in field 7, not 3");
    refused(vec![0x02, 0], "a field number");
    refused(vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "at most 0 bytes in field 7");
    refused(vec![0xff; 12], "a varint of at most 64 bits");
    refused(Message::default().int(7, 1).0, "offset 0, in ModelProto: expected bytes with a length in field 7");
    let text = Message::default().bytes(8, &[0xff, 0xfe]);
    refused(with_tensor(text), "text in UTF-8");
    let negative = Message::default().int(1, -1).int(2, 1).text(8, "w");
    refused(with_tensor(negative), "tensor w at offset 4: expected no negative dimension");
    let huge = Message::default().int(1, i64::MAX).int(1, i64::MAX).int(2, 1).text(8, "w");
    refused(with_tensor(huge), "at most 2^64 elements");
    let short = Message::default().int(1, 3).int(2, 7).text(8, "w").bytes(7, &[1, 2]);
    refused(with_tensor(short), "3 numbers of shape [3], not 2");
}

#[test]
fn data_beside_the_model_stay_in_its_folder() {
    let external = |location: &str, length: &str| {
        let entry = |key: &str, value: &str| Message::default().text(1, key).text(2, value).0;
        let tensor = Message::default().int(1, 2).int(2, 1).text(8, "w").bytes(13, &entry("location", location));
        Model::read(&with_tensor(tensor.bytes(13, &entry("length", length)).int(14, 1)))
    };
    assert!(external("weights/model.data", "8").is_ok());
    for location in ["../model.data", "/etc/model.data", "C:\\model.data", "", "a/../../b"] {
        assert!(matches!(external(location, "8"), Err(Error::Tensor { .. })), "{location}");
    }
    assert!(external("model.data", "7").unwrap_err().to_string().contains("8 bytes of shape [2], not 7"));
    assert!(external("model.data", "x").unwrap_err().to_string().contains("a number as length"));
}

#[test]
fn graphs_inside_of_graphs_end_somewhere() {
    let mut graph = Message::default();
    for _ in 0..2000 {
        let attribute = Message::default().text(1, "body").bytes(6, &graph.0);
        let node = Message::default().text(4, "Loop").bytes(5, &attribute.0);
        graph = Message::default().bytes(1, &node.0);
    }
    let error = Model::read(&Message::default().bytes(7, &graph.0).0).unwrap_err().to_string();
    assert!(error.contains("at most 16 nested graphs"), "{error}");
}
