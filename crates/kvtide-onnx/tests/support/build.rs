//! Small hand-made ONNX models: a decoder with one or two layers, whose attention a test supplies.

use std::cell::Cell;

/// A protobuf message.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn int(mut self, number: u64, value: i64) -> Self {
        self.varint(number << 3);
        self.varint(value.cast_unsigned());
        self
    }

    pub fn float(mut self, number: u64, value: f32) -> Self {
        self.varint(number << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, number: u64, bytes: &[u8]) -> Self {
        self.varint(number << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn text(self, number: u64, text: &str) -> Self {
        self.bytes(number, text.as_bytes())
    }
}

/// An attribute of a node.
#[derive(Clone)]
pub enum Attr {
    Int(&'static str, i64),
    Float(&'static str, f32),
    Text(&'static str, &'static str),
    Ints(&'static str, Vec<i64>),
    Graph(&'static str, Message),
}

pub const F32: i64 = 1;
pub const F16: i64 = 10;
pub const U8: i64 = 2;
pub const I8: i64 = 3;
pub const I64: i64 = 7;
pub const BOOL: i64 = 9;
const U4: i64 = 21;

/// A dimension: a size, or a name.
#[derive(Clone, Copy)]
pub enum Size {
    Is(i64),
    Named(&'static str),
}

#[derive(Default)]
pub struct Graph {
    pub fields: Message,
    made: Cell<usize>,
}

impl Graph {
    fn push(&mut self, number: u64, message: Message) {
        self.fields = std::mem::take(&mut self.fields).bytes(number, &message.0);
    }

    pub fn fresh(&self, what: &str) -> String {
        self.made.set(self.made.get() + 1);
        format!("{what}.{}", self.made.get())
    }

    /// A node with the outputs that are named.
    pub fn node_to(&mut self, operator: &str, inputs: &[&str], outputs: &[&str], attributes: &[Attr]) {
        let (domain, operator) = operator.rsplit_once('.').unwrap_or(("", operator));
        let mut message = Message::default();
        for input in inputs {
            message = message.text(1, input);
        }
        for output in outputs {
            message = message.text(2, output);
        }
        message = message.text(3, &format!("node of {}", outputs[0])).text(4, operator).text(7, domain);
        for attribute in attributes {
            message = message.bytes(5, &attribute.message().0);
        }
        self.push(1, message);
    }

    /// A node with one output, and its name.
    pub fn node(&mut self, operator: &str, inputs: &[&str], attributes: &[Attr]) -> String {
        let output = self.fresh(operator.rsplit('.').next().unwrap());
        self.node_to(operator, inputs, &[&output], attributes);
        output
    }

    fn tensor(&mut self, name: &str, element: i64, dims: &[i64], raw: &[u8]) -> String {
        let mut message = Message::default();
        for &dim in dims {
            message = message.int(1, dim);
        }
        self.push(5, message.int(2, element).text(8, name).bytes(9, raw));
        name.to_owned()
    }

    pub fn floats(&mut self, dims: &[i64], values: &[f32]) -> String {
        let name = self.fresh("floats");
        self.tensor(&name, F32, dims, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn bytes(&mut self, dims: &[i64], values: &[u8]) -> String {
        let name = self.fresh("bytes");
        self.tensor(&name, U8, dims, values)
    }

    /// Codes of 4 bits without a sign, two in each byte.
    pub fn nibbles(&mut self, dims: &[i64], values: &[u8]) -> String {
        let name = self.fresh("nibbles");
        self.tensor(&name, U4, dims, values)
    }

    pub fn truths(&mut self, dims: &[i64], values: &[u8]) -> String {
        let name = self.fresh("truths");
        self.tensor(&name, BOOL, dims, values)
    }

    pub fn ints(&mut self, dims: &[i64], values: &[i64]) -> String {
        let name = self.fresh("ints");
        self.tensor(&name, I64, dims, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Numbers between -0.5 and 0.5 that look random, times a size.
    pub fn weight(&mut self, dims: &[i64], size: f32) -> String {
        let mut state = 12345 + self.made.get() as u32;
        let count = dims.iter().product::<i64>();
        let values: Vec<f32> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * size
            })
            .collect();
        self.floats(dims, &values)
    }

    fn value(name: &str, element: i64, dims: &[Size]) -> Message {
        let mut shape = Message::default();
        for dim in dims {
            let dim = match dim {
                Size::Is(size) => Message::default().int(1, *size),
                Size::Named(name) => Message::default().text(2, name),
            };
            shape = shape.bytes(1, &dim.0);
        }
        let tensor = Message::default().int(1, element).bytes(2, &shape.0);
        let kind = Message::default().bytes(1, &tensor.0);
        Message::default().text(1, name).bytes(2, &kind.0)
    }

    pub fn input(&mut self, name: &str, element: i64, dims: &[Size]) -> String {
        self.push(11, Self::value(name, element, dims));
        name.to_owned()
    }

    pub fn output(&mut self, name: &str, element: i64, dims: &[Size]) {
        self.push(12, Self::value(name, element, dims));
    }

    /// The whole model.
    pub fn model(&self, opset: i64) -> Vec<u8> {
        let own = Message::default().text(1, "").int(2, opset);
        let other = Message::default().text(1, "com.microsoft").int(2, 1);
        let fields = self.fields.clone().text(2, "decoder");
        Message::default().int(1, 9).bytes(7, &fields.0).bytes(8, &own.0).bytes(8, &other.0).0
    }
}

impl Attr {
    fn message(&self) -> Message {
        match self {
            Self::Int(name, value) => Message::default().text(1, name).int(3, *value).int(20, 2),
            Self::Float(name, value) => Message::default().text(1, name).float(2, *value).int(20, 1),
            Self::Text(name, value) => Message::default().text(1, name).text(4, value).int(20, 3),
            Self::Graph(name, graph) => Message::default().text(1, name).bytes(6, &graph.0).int(20, 5),
            Self::Ints(name, values) => {
                let named = Message::default().text(1, name);
                values.iter().fold(named, |message, &value| message.int(8, value)).int(20, 7)
            }
        }
    }
}

/// The sizes of the decoder.
pub const WIDTH: i64 = 32;
pub const HEADS: i64 = 4;
pub const DIM: i64 = 16;
pub const VOCABULARY: i64 = 40;

/// The input of an attention: the hidden state, and its layer.
pub struct Decoder {
    pub graph: Graph,
    pub kv_heads: i64,
}

impl Decoder {
    /// Token ids, a mask and, if wanted, positions as inputs.
    pub fn new(kv_heads: i64, positions: bool) -> Self {
        let mut graph = Graph::default();
        let tokens = [Size::Named("batch"), Size::Named("new")];
        graph.input("input_ids", I64, &tokens);
        graph.input("attention_mask", I64, &[Size::Named("batch"), Size::Named("total")]);
        if positions {
            graph.input("position_ids", I64, &tokens);
        }
        Self { graph, kv_heads }
    }

    /// Two layers with this attention, and a head. An attention gives `[batch, tokens, heads * dim]`.
    pub fn layers(self, attention: impl Fn(&mut Self, usize, [&str; 3]) -> String) -> Graph {
        let dims = [Size::Named("batch"), Size::Named("new"), Size::Is(VOCABULARY)];
        self.layers_to(attention, &dims, |graph, hidden, weight| {
            graph.node_to("MatMul", &[hidden, weight], &["logits"], &[]);
        })
    }

    /// The same, with a head that computes `logits` of these dimensions from hidden states and a weight.
    pub fn layers_to(
        mut self,
        attention: impl Fn(&mut Self, usize, [&str; 3]) -> String,
        dims: &[Size],
        head: impl Fn(&mut Graph, &str, &str),
    ) -> Graph {
        let table = self.graph.weight(&[VOCABULARY, WIDTH], 2.);
        let mut hidden = self.graph.node("Gather", &[&table, "input_ids"], &[]);
        for layer in 0..2 {
            let widths = [HEADS * DIM, self.kv_heads * DIM, self.kv_heads * DIM];
            let operands = widths.map(|width| {
                let weight = self.graph.weight(&[WIDTH, width], 0.9);
                self.graph.node("MatMul", &[&hidden, &weight], &[])
            });
            let attended = attention(&mut self, layer, [&operands[0], &operands[1], &operands[2]]);
            let weight = self.graph.weight(&[HEADS * DIM, WIDTH], 0.9);
            let attended = self.graph.node("MatMul", &[&attended, &weight], &[]);
            hidden = self.graph.node("Add", &[&hidden, &attended], &[]);
        }
        let weight = self.graph.weight(&[WIDTH, VOCABULARY], 1.);
        head(&mut self.graph, &hidden, &weight);
        self.graph.output("logits", F32, dims);
        self.graph
    }

    /// The pasts of a layer as inputs, and the names of its presents as outputs.
    pub fn pasts(&mut self, layer: usize) -> [[String; 2]; 2] {
        self.pasts_of(layer, F32, Size::Is(DIM))
    }

    /// The same, with the presents joined from the pasts and new rows of `heads` heads.
    pub fn joined(&mut self, layer: usize, rows: [&str; 2], heads: i64) -> [[String; 2]; 2] {
        let [pasts, presents] = self.pasts(layer);
        for (side, name) in rows.into_iter().enumerate() {
            let new = self.heads_first(name, heads);
            self.graph.node_to("Concat", &[&pasts[side], &new], &[&presents[side]], &[Attr::Int("axis", 2)]);
        }
        [pasts, presents]
    }

    /// The same as `pasts` of another type, and with rows of another size.
    pub fn pasts_of(&mut self, layer: usize, element: i64, row: Size) -> [[String; 2]; 2] {
        let dims = |rows| [Size::Named("batch"), Size::Is(self.kv_heads), Size::Named(rows), row];
        let (past, total) = (dims("past"), dims("total"));
        let names = |stem: &str| ["key", "value"].map(|side| format!("{stem}.{layer}.{side}"));
        let (pasts, presents) = (names("past_key_values"), names("present"));
        pasts.iter().for_each(|name| drop(self.graph.input(name, element, &past)));
        presents.iter().for_each(|name| self.graph.output(name, element, &total));
        [pasts, presents]
    }

    /// The number of tokens before the last one of each sequence, and of all tokens: inputs of GroupQueryAttention.
    pub fn lengths(&mut self) -> [String; 2] {
        let graph = &mut self.graph;
        let (axis, one) = (graph.ints(&[1], &[1]), graph.ints(&[], &[1]));
        let to = Attr::Int("to", 6);
        let sum = graph.node("ReduceSum", &["attention_mask", &axis], &[Attr::Int("keepdims", 0)]);
        let last = graph.node("Sub", &[&sum, &one], &[]);
        let last = graph.node("Cast", &[&last], std::slice::from_ref(&to));
        let shape = graph.node("Shape", &["attention_mask"], &[]);
        let total = graph.node("Gather", &[&shape, &one], &[]);
        [last, graph.node("Cast", &[&total], &[to])]
    }

    /// GroupQueryAttention of two KV heads, with rotary tables if there are any.
    pub fn grouped(&mut self, layer: usize, operands: [&str; 3], tables: &[&str]) -> String {
        let [pasts, presents] = self.pasts(layer);
        let [last, total] = self.lengths();
        let own = [pasts[0].as_str(), &pasts[1], &last, &total];
        let inputs: Vec<&str> = operands.iter().chain(&own).chain(tables).copied().collect();
        let output = self.graph.fresh("attended");
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        let rotary = i64::from(!tables.is_empty());
        let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2), Attr::Int("do_rotary", rotary)];
        self.graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &attributes);
        output
    }

    /// `[batch, tokens, heads * dim]` as `[batch, heads, tokens, dim]`.
    pub fn heads_first(&mut self, name: &str, heads: i64) -> String {
        let shape = self.graph.ints(&[4], &[0, 0, heads, DIM]);
        let apart = self.graph.node("Reshape", &[name, &shape], &[]);
        self.graph.node("Transpose", &[&apart], &[Attr::Ints("perm", vec![0, 2, 1, 3])])
    }

    /// And back.
    pub fn packed(&mut self, name: &str) -> String {
        let turned = self.graph.node("Transpose", &[name], &[Attr::Ints("perm", vec![0, 2, 1, 3])]);
        let shape = self.graph.ints(&[3], &[0, 0, HEADS * DIM]);
        self.graph.node("Reshape", &[&turned, &shape], &[])
    }

    /// One dimension of a tensor, without axes.
    pub fn size_of(&mut self, name: &str, axis: i64) -> String {
        let shape = self.graph.node("Shape", &[name], &[]);
        let axis = self.graph.ints(&[], &[axis]);
        self.graph.node("Gather", &[&shape, &axis], &[])
    }

    /// Positions of queries from the past's length, `[new, 1]`, and of keys, `[total]`.
    pub fn positions(&mut self, past: &str) -> [String; 2] {
        let before = self.size_of(past, 2);
        let new = self.size_of("input_ids", 1);
        let total = self.graph.node("Add", &[&before, &new], &[]);
        let (zero, one, axis) = (self.graph.ints(&[], &[0]), self.graph.ints(&[], &[1]), self.graph.ints(&[1], &[1]));
        let keys = self.graph.node("Range", &[&zero, &total, &one], &[]);
        let queries = self.graph.node("Range", &[&before, &total, &one], &[]);
        [self.graph.node("Unsqueeze", &[&queries, &axis], &[]), keys]
    }

    /// The keys that each query attends to, `[new, total]`: those before it, within a window if there is one.
    pub fn seen(&mut self, past: &str, window: Option<i64>) -> String {
        let [queries, keys] = self.positions(past);
        let seen = self.graph.node("LessOrEqual", &[&keys, &queries], &[]);
        let Some(window) = window else { return seen };
        let window = self.graph.ints(&[], &[window]);
        let first = self.graph.node("Sub", &[&queries, &window], &[]);
        let near = self.graph.node("Greater", &[&keys, &first], &[]);
        self.graph.node("And", &[&seen, &near], &[])
    }

    /// The same as a number that is added.
    pub fn added(&mut self, seen: &str) -> String {
        let (zero, low) = (self.graph.floats(&[], &[0.]), self.graph.floats(&[], &[f32::MIN]));
        self.graph.node("Where", &[seen, &zero, &low], &[])
    }
}
