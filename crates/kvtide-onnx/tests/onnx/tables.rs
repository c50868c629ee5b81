//! Masks that are cut out of a table with a row for each position: causal ones, with or without a window. All numbers of a
//! table count, and the last row is the end of the context.

use kvtide_onnx::{Error, Layer, Model, Options, Rewritten};

use crate::support::build::{Attr, BOOL, DIM, Decoder, Graph, HEADS};
use crate::support::runtime::same_as_before;

/// The forms of tables.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Truth values that keep scores.
    Truths,
    /// Bytes of which a slice is cast to truth values.
    Bytes,
    /// Truth values of hidden keys, of two dimensions.
    Hidden,
    /// Numbers that are added to scores.
    Added,
}

#[derive(Clone, Copy, Debug)]
struct Table {
    kind: Kind,
    rows: i64,
    columns: i64,
    window: i64,
    /// A row and a column with the other number.
    wrong: Option<[i64; 2]>,
}

impl Table {
    fn new(kind: Kind, rows: i64, window: i64) -> Self {
        Self { kind, rows, columns: rows, window, wrong: None }
    }

    fn seen(&self) -> Vec<bool> {
        let seen = |row: i64, column: i64| column <= row && row - column < self.window;
        let places = (0..self.rows).flat_map(|row| (0..self.columns).map(move |column| [row, column]));
        places.map(|place| seen(place[0], place[1]) != (self.wrong == Some(place))).collect()
    }

    fn add(&self, graph: &mut Graph) -> String {
        let (seen, dims) = (self.seen(), [1, 1, self.rows, self.columns]);
        let bytes = |when: bool| seen.iter().map(|&seen| u8::from(seen == when)).collect::<Vec<_>>();
        match self.kind {
            Kind::Truths => graph.truths(&dims, &bytes(true)),
            Kind::Bytes => graph.bytes(&dims, &bytes(true)),
            Kind::Hidden => graph.truths(&dims[2..], &bytes(false)),
            Kind::Added => {
                let numbers: Vec<f32> = seen.iter().map(|&seen| if seen { 0. } else { f32::MIN }).collect();
                graph.floats(&dims, &numbers)
            }
        }
    }
}

/// A decoder of plain attention with a mask that is cut out of a table: rows from the past's length on, and columns up to
/// the last key.
fn decoder(tables: [Table; 2]) -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let operands = [query, key, value].map(|name| decoder.heads_first(name, HEADS));
        let graph = &mut decoder.graph;
        for side in 0..2 {
            let inputs = [pasts[side].as_str(), &operands[side + 1]];
            graph.node_to("Concat", &inputs, &[&presents[side]], &[Attr::Int("axis", 2)]);
        }
        let keys = graph.node("Transpose", &[&presents[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&operands[0], &keys], &[]);
        let [past, total] = [&pasts[0], &presents[0]].map(|name| {
            let size = decoder.size_of(name, 2);
            let front = decoder.graph.ints(&[1], &[0]);
            decoder.graph.node("Unsqueeze", &[&size, &front], &[])
        });
        let (table, graph) = (tables[layer], &mut decoder.graph);
        let [rows, columns] = [-2, -1].map(|axis| graph.ints(&[1], &[axis]));
        let zero = graph.ints(&[1], &[0]);
        let mask = table.add(graph);
        let mask = graph.node("Slice", &[&mask, &past, &total, &rows], &[]);
        let mask = graph.node("Slice", &[&mask, &zero, &total, &columns], &[]);
        let low = graph.floats(&[], &[f32::MIN]);
        let masked = match table.kind {
            Kind::Added => graph.node("Add", &[&scores, &mask], &[]),
            Kind::Hidden => graph.node("Where", &[&mask, &low, &scores], &[]),
            Kind::Truths => graph.node("Where", &[&mask, &scores, &low], &[]),
            Kind::Bytes => {
                let mask = graph.node("Cast", &[&mask], &[Attr::Int("to", BOOL)]);
                graph.node("Where", &[&mask, &scores, &low], &[])
            }
        };
        let weights = graph.node("Softmax", &[&masked], &[Attr::Int("axis", -1)]);
        let attended = graph.node("MatMul", &[&weights, &presents[1]], &[]);
        decoder.packed(&attended)
    })
}

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

#[test]
fn tables_are_causal_masks_with_their_windows_and_an_end() {
    for kind in [Kind::Truths, Kind::Bytes, Kind::Hidden, Kind::Added] {
        // Small tables are evaluated, large ones are read as bands. Tables of floats are small up to 256 numbers.
        for rows in [40, 200] {
            if (kind, rows) == (Kind::Added, 40) {
                continue;
            }
            let tables = [Table::new(kind, rows, i64::MAX), Table { columns: rows + 8, ..Table::new(kind, rows, 5) }];
            let bytes = decoder(tables).model(18);
            let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{tables:?}: {error}"));
            let found: Vec<_> = rewritten.layers().iter().map(|layer| (layer.window, layer.context_length)).collect();
            assert_eq!(found, [(None, Some(rows as u32)), (Some(5), Some(rows as u32))], "{kind:?}");
            assert_eq!(rewritten.context_length(), Some(rows as u32));
            let of_product = |layer: &Layer| (layer.scale - 1.).abs() < 1e-6 && layer.head_dim == DIM as u32;
            assert!(rewritten.layers().iter().all(of_product));
            same_as_before(&format!("table.{kind:?}.{rows}"), &bytes, &rewritten);
        }
    }
    let bytes = decoder([Table::new(Kind::Truths, 300, 9), Table::new(Kind::Truths, 160, i64::MAX)]).model(18);
    assert_eq!(rewrite(&bytes).unwrap().context_length(), Some(160), "the shortest table counts");
}

#[test]
fn one_wrong_number_anywhere_in_a_table_is_refused() {
    for kind in [Kind::Truths, Kind::Bytes, Kind::Hidden, Kind::Added] {
        for rows in [40, 200] {
            for window in [i64::MAX, 6] {
                let last = rows - 1;
                // Inside, outside, at both edges of the band, in the first and in the last row and column.
                for wrong in
                    [[0, 1], [0, last], [last, 1], [last, last], [20, 20], [20, 21], [20, 15], [20, 14], [31, 3]]
                {
                    let table = Table { wrong: Some(wrong), ..Table::new(kind, rows, window) };
                    let error = rewrite(&decoder([Table::new(kind, rows, window), table]).model(18)).err();
                    let error = error.unwrap_or_else(|| panic!("{table:?} is accepted"));
                    let Error::Unrecognised { operator, reason, .. } = &error else { panic!("{table:?}: {error}") };
                    assert!(operator == "Softmax" && reason.contains("mask"), "{table:?}: {reason}");
                    assert!(reason.len() < 200, "{reason}");
                }
            }
        }
    }
}

#[test]
fn a_table_of_one_number_is_no_mask() {
    for rows in [40, 200] {
        let table = Table { columns: rows, ..Table::new(Kind::Truths, rows, 0) };
        let error = rewrite(&decoder([table; 2]).model(18)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("Softmax") && error.contains("mask"), "{error}");
    }
}
