//! The second graph of a rewrite, in which attention does the work of the nodes around it: what is left of them. Its
//! numbers are checked with onnxruntime, by the tests of the package.

use kvtide_onnx::{ElementType, Model, Options, Rewritten, Weights};

use crate::support::{bytes, reads_transposed};

/// Counts the nodes with an operator in a graph and in its fused form.
fn counts(graph: &str, operator: &str) -> [usize; 2] {
    counts_with(&Options::default(), graph, operator)
}

fn counts_with(options: &Options, graph: &str, operator: &str) -> [usize; 2] {
    // The operator is field 4 of a node.
    occurrences(&bytes(graph), options, &[&[0x22, operator.len() as u8], operator.as_bytes()].concat())
}

/// Counts these bytes in a graph and in its fused form.
fn occurrences(bytes: &[u8], options: &Options, field: &[u8]) -> [usize; 2] {
    let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), options).unwrap();
    [rewritten.model(), rewritten.fused()].map(|model| {
        let written = model.to_bytes(&bytes, Weights::Inline).unwrap();
        Model::read(&written).unwrap();
        written.windows(field.len()).filter(|window| *window == field).count()
    })
}

#[test]
fn packed_operands_and_rotary_embeddings_are_read_by_the_operator() {
    assert_eq!(counts("onnx-gqa-f32", "RotaryEmbedding"), [6, 0]);
    assert_eq!(counts("onnx-gqa-f32", "Split"), [3, 0]);
    assert_eq!(counts("onnx-gqa-f32", "Attention"), [3, 3]);
    // The runtime rounds half floats between the nodes.
    assert_eq!(counts("onnx-gqa-f16", "RotaryEmbedding"), [6, 6]);
    assert_eq!(counts("onnx-gqa-f16", "Split"), [3, 3]);
}

#[test]
fn rotations_that_are_products_and_transposed_heads_are_read_by_the_operator() {
    assert_eq!(counts("onnx", "Neg"), [6, 0]);
    // One transposes the products of positions and frequencies.
    assert_eq!(counts("onnx", "Transpose"), [13, 1]);
    // Only a part of each head is rotated.
    assert_eq!(counts("../families/stablelm/optimum", "Neg"), [4, 0]);
    assert_eq!(counts("../families/stablelm/optimum", "Transpose")[1], 1);
    // Rotations of neighbours stay as they are.
    let [before, after] = counts("../families/cohere/optimum", "Neg");
    assert_eq!(before, after);
}

#[test]
fn embeddings_are_read_from_the_weight_of_the_head() {
    let is_read = |graph: &str| {
        let bytes = bytes(graph);
        let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default()).unwrap();
        [rewritten.model(), rewritten.fused()].map(|model| {
            let written = model.to_bytes(&bytes, Weights::Inline).unwrap();
            written.windows(15).any(|window| window == b"kvtide/columns.")
        })
    };
    assert_eq!(is_read("../families/gemma2/builder"), [false, true]);
    // Other graphs have a table of their own.
    assert_eq!(is_read("onnx-gqa-f32"), [false, false]);
}

#[test]
fn the_product_of_the_head_reads_its_weight_in_place() {
    for graph in ["onnx", "onnx-gqa-f32", "onnx-gqa-f16", "../families/gemma2/builder"] {
        let transposed = |logit_rows| reads_transposed(&bytes(graph), &Options { logit_rows, ..Options::default() });
        assert_eq!(transposed(true), Some(false), "{graph}");
        // Without chosen rows, a prompt has as many as tokens.
        assert_eq!(transposed(false), None, "{graph}");
    }
}

/// Counts the nodes of the operator's domain, three of which are attentions, in a graph and in its fused form.
fn ours(bytes: &[u8], options: &Options) -> [usize; 2] {
    // The domain is field 7 of a node.
    occurrences(bytes, options, b"\x3a\x06kvtide")
}

#[test]
fn products_with_weights_of_floats_are_the_operator_s() {
    let counts = |graph: &str, is_packed, logit_rows| {
        let packed_products = if is_packed { vec![ElementType::F32, ElementType::F16] } else { vec![] };
        ours(&bytes(graph), &Options { packed_products, logit_rows, ..Options::default() })
    };
    for graph in ["onnx-gqa-f16", "onnx-gqa-f32"] {
        // A layer has five; the head is chosen rows, or all of them.
        assert_eq!(counts(graph, true, true), [3, 3 + 3 * 5 + 1], "{graph}");
        assert_eq!(counts(graph, true, false), [3, 3 + 3 * 5 + 1], "{graph}");
        assert_eq!(counts(graph, false, true), [3, 3 + 1], "{graph}");
        assert_eq!(counts(graph, false, false), [3, 3], "{graph}");
    }
}

#[test]
fn weights_of_few_columns_are_not_packed() {
    // A gate has a column for each of four experts.
    let options = Options { packed_products: vec![ElementType::F32], ..Options::default() };
    let after = |operator| counts_with(&options, "../families/mixtral/mobius", operator)[1];
    assert_eq!([after("MatMul"), after("PackedMatMul")], [2, 33]);
}

#[test]
fn products_with_weights_of_4_bits_are_the_operator_s() {
    let counts = |bytes: &[u8], block_products| ours(bytes, &Options { block_products, ..Options::default() });
    let mut model = bytes("onnx-gqa-int4");
    assert_eq!(counts(&model, false), [3, 3]);
    // A layer has five, of which two are one with its gate, and the head is one.
    assert_eq!(counts(&model, true), [3, 3 + 3 * 4 + 1]);
    // So are products of floats; one whose gate is a product of bytes stays alone.
    let level = b"accuracy_level\x18\x04";
    let places: Vec<_> = (0..model.len() - level.len()).filter(|&at| model[at..].starts_with(level)).collect();
    assert_eq!(places.len(), 16);
    for at in &places[3..] {
        model[at + level.len() - 1] = 1;
    }
    assert_eq!(counts(&model, true), [3, 3 + 3 * 4 + 1 + 1]);
}
