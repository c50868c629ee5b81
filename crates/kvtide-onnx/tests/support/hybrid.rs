//! Layers that keep a state, in all forms, for the decoders of `build`.

use super::build::{Attr, DIM, Decoder, F32, Graph, HEADS, Size};

/// The channels of a convolution: the width of queries.
pub const CHANNELS: i64 = HEADS * DIM;

/// A decoder whose first layer keeps a state, and whose second one is an attention.
pub fn hybrid(state: impl Fn(&mut Graph, [&str; 3]) -> String) -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, operands| match layer {
        0 => state(&mut decoder.graph, operands),
        _ => decoder.grouped(layer, operands, &[]),
    })
}

/// A state as an input and an output.
pub fn port(graph: &mut Graph, names: [&str; 2], element: i64, shape: &[i64]) {
    let mut dims = vec![Size::Named("batch")];
    dims.extend(shape.iter().map(|&size| Size::Is(size)));
    graph.input(names[0], element, &dims);
    graph.output(names[1], element, &dims);
}

/// `[batch, tokens, channels]` as `[batch, channels, tokens]`, and back.
pub fn turned(graph: &mut Graph, name: &str) -> String {
    graph.node("Transpose", &[name], &[Attr::Ints("perm", vec![0, 2, 1])])
}

/// A tensor times a number.
pub fn scaled(graph: &mut Graph, name: &str, factor: f32) -> String {
    let factor = graph.floats(&[], &[factor]);
    graph.node("Mul", &[name, &factor], &[])
}

/// A product with weights.
pub fn projected(graph: &mut Graph, name: &str, from: i64, to: i64) -> String {
    let weight = graph.weight(&[from, to], 0.3);
    graph.node("MatMul", &[name, &weight], &[])
}

/// A convolution of ordinary operators.
#[derive(Clone)]
pub struct Plain {
    pub layer: usize,
    pub columns: i64,
    pub kernel: i64,
    pub bias: bool,
    /// Attributes of the convolution besides its group.
    pub attributes: Vec<Attr>,
    /// The output channels of a channel.
    pub outputs: i64,
    /// The first column of the present, and the one behind its last.
    pub kept: [i64; 2],
}

impl Plain {
    pub fn of(kernel: i64, columns: i64) -> Self {
        let kept = [-columns, i64::MAX];
        Self { layer: 0, columns, kernel, bias: false, attributes: Vec::new(), outputs: 1, kept }
    }

    pub fn names(&self) -> [String; 2] {
        ["past", "present"].map(|stem| format!("{stem}_conv.{}", self.layer))
    }

    /// The last elements of a tensor on axis 2, as many as a tensor has tokens.
    pub fn last(graph: &mut Graph, name: &str, tokens: &str) -> String {
        let shape = graph.node("Shape", &[tokens], &[]);
        let (one, axes, end) = (graph.ints(&[1], &[1]), graph.ints(&[1], &[2]), graph.ints(&[1], &[i64::MAX]));
        let count = graph.node("Gather", &[&shape, &one], &[]);
        let start = graph.node("Neg", &[&count], &[]);
        graph.node("Slice", &[name, &start, &end, &axes], &[])
    }

    /// The past and the new columns together.
    pub fn joined(&self, graph: &mut Graph, x: &str) -> String {
        let [past, present] = self.names();
        port(graph, [&past, &present], F32, &[CHANNELS, self.columns]);
        let x = turned(graph, x);
        graph.node("Concat", &[&past, &x], &[Attr::Int("axis", 2)])
    }

    pub fn present(&self, graph: &mut Graph, joined: &str) {
        let [start, end] = self.kept.map(|at| graph.ints(&[1], &[at]));
        let axes = graph.ints(&[1], &[2]);
        graph.node_to("Slice", &[joined, &start, &end, &axes], &[&self.names()[1]], &[]);
    }

    pub fn convolved(&self, graph: &mut Graph, joined: &str) -> String {
        let weight = graph.weight(&[CHANNELS * self.outputs, 1, self.kernel], 1.);
        let mut inputs = vec![joined.to_owned(), weight];
        if self.bias {
            inputs.push(graph.weight(&[CHANNELS * self.outputs], 1.));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes: Vec<Attr> = [Attr::Int("group", CHANNELS)].into_iter().chain(self.attributes.clone()).collect();
        graph.node("Conv", &inputs, &attributes)
    }

    /// The whole layer: `[batch, tokens, channels]` to the same.
    pub fn layer(&self, graph: &mut Graph, x: &str) -> String {
        let joined = self.joined(graph, x);
        self.present(graph, &joined);
        let mut out = self.convolved(graph, &joined);
        if self.columns > self.kernel - 1 || !self.attributes.is_empty() {
            out = Self::last(graph, &out, x);
        }
        turned(graph, &out)
    }
}

/// `CausalConvWithState` with the kernel 3.
pub fn causal(graph: &mut Graph, x: &str, has_bias: bool, attributes: &[Attr]) -> String {
    let is_last = attributes.iter().any(|attribute| matches!(attribute, Attr::Int("channels_last", 1)));
    let shape = if is_last { [2, CHANNELS] } else { [CHANNELS, 2] };
    port(graph, ["past_conv.0", "present_conv.0"], F32, &shape);
    let x = if is_last { x.to_owned() } else { turned(graph, x) };
    let weight = graph.weight(&[CHANNELS, 1, 3], 1.);
    let bias = if has_bias { graph.weight(&[CHANNELS], 1.) } else { String::new() };
    let out = graph.fresh("convolved");
    let operator = "com.microsoft.CausalConvWithState";
    graph.node_to(operator, &[&x, &weight, &bias, "past_conv.0"], &[&out, "present_conv.0"], attributes);
    if is_last { out } else { turned(graph, &out) }
}

/// A linear attention with heads of 16 elements.
#[derive(Clone)]
pub struct Linear {
    pub rule: &'static str,
    pub q_heads: i64,
    pub v_heads: i64,
    /// The widths of decays and of rates.
    pub decay: Option<i64>,
    pub beta: Option<i64>,
    pub attributes: Vec<Attr>,
}

impl Linear {
    pub fn of(rule: &'static str) -> Self {
        let [decay, beta] = [rule.starts_with("gated"), rule.ends_with("delta")].map(|takes| takes.then_some(2));
        Self { rule, q_heads: 4, v_heads: 2, decay, beta, attributes: Vec::new() }
    }

    /// The whole layer: queries, keys and values to `[batch, tokens, channels]`.
    pub fn layer(&self, graph: &mut Graph, [query, key, value]: [&str; 3]) -> String {
        let names = ["past_key_values.0.recurrent_state", "present.0.recurrent_state"];
        port(graph, names, F32, &[self.v_heads, DIM, DIM]);
        let widths = [self.q_heads, 2, self.v_heads].map(|heads| heads * DIM);
        let of = |graph: &mut Graph, name: &str, from: i64, to: i64| {
            if from == to { name.to_owned() } else { projected(graph, name, from, to) }
        };
        let q = of(graph, query, CHANNELS, widths[0]);
        let k = scaled(graph, key, 0.2);
        let v = of(graph, value, 2 * DIM, widths[2]);
        let decay = self.decay.map(|width| {
            let raw = projected(graph, query, CHANNELS, width);
            let size = graph.node("Abs", &[&raw], &[]);
            graph.node("Neg", &[&size], &[])
        });
        let beta = self.beta.map(|width| {
            let raw = projected(graph, query, CHANNELS, width);
            graph.node("Sigmoid", &[&raw], &[])
        });
        let out = graph.fresh("recurred");
        let (decay, beta) = (decay.unwrap_or_default(), beta.unwrap_or_default());
        let heads = [Attr::Int("q_num_heads", self.q_heads), Attr::Int("kv_num_heads", self.v_heads)];
        let rule = Attr::Text("update_rule", self.rule);
        let attributes: Vec<Attr> = heads.into_iter().chain([rule]).chain(self.attributes.clone()).collect();
        let inputs = [&q, &k, &v, names[0], &decay, &beta];
        graph.node_to("com.microsoft.LinearAttention", &inputs, &[&out, names[1]], &attributes);
        out
    }
}

/// A state space model of a `Scan`, with 4 heads of 16 elements.
#[derive(Clone, Copy)]
pub struct Scan {
    /// The elements of the state of each element.
    pub size: i64,
    pub groups: i64,
    pub has_bias: bool,
    pub has_limits: bool,
    pub has_softplus: bool,
    /// A lower limit alone, written as a maximum.
    pub has_least: bool,
    /// Decays have the axes of a state before the scan, instead of in its body.
    pub is_expanded: bool,
    /// The factor of values: 2 for another model.
    pub writes: f32,
}

impl Scan {
    pub fn of(size: i64, groups: i64) -> Self {
        Self {
            size,
            groups,
            has_bias: true,
            has_limits: false,
            has_softplus: true,
            has_least: false,
            is_expanded: false,
            writes: 1.,
        }
    }

    /// The times of tokens.
    fn step(self, graph: &mut Graph, x: &str) -> String {
        let mut step = projected(graph, x, CHANNELS, HEADS);
        if self.has_bias {
            let bias = graph.weight(&[HEADS], 1.);
            step = graph.node("Add", &[&step, &bias], &[]);
        }
        step = if self.has_softplus {
            graph.node("Softplus", &[&step], &[])
        } else {
            graph.node("Sigmoid", &[&step], &[])
        };
        if self.has_limits {
            let [low, high] = [0.4, 0.8].map(|limit| graph.floats(&[], &[limit]));
            step = graph.node("Clip", &[&step, &low, &high], &[]);
        }
        if self.has_least {
            let least = graph.floats(&[], &[0.4]);
            step = graph.node("Max", &[&step, &least], &[]);
        }
        step
    }

    /// Keys or queries of all heads.
    fn side(self, graph: &mut Graph, name: &str) -> String {
        let shape = graph.ints(&[4], &[0, 0, self.groups, self.size]);
        let rows = projected(graph, name, 2 * DIM, self.groups * self.size);
        let apart = graph.node("Reshape", &[&rows, &shape], &[]);
        let of_heads: Vec<i64> = (0..HEADS).map(|head| head * self.groups / HEADS).collect();
        let of_heads = graph.ints(&[HEADS], &of_heads);
        graph.node("Gather", &[&apart, &of_heads], &[Attr::Int("axis", 2)])
    }

    fn body(self) -> Attr {
        let mut body = Graph::default();
        // Names of a body differ from those around it.
        (0..10_000).for_each(|_| drop(body.fresh("unused")));
        let dims = |rest: &[i64]| {
            let rest = rest.iter().map(|&size| Size::Is(size));
            [Size::Named("batch"), Size::Is(HEADS)].into_iter().chain(rest).collect::<Vec<_>>()
        };
        let whole = [DIM, self.size];
        body.input("h", F32, &dims(&whole));
        body.input("factor", F32, &dims(if self.is_expanded { &[1, 1] } else { &[] }));
        body.input("written", F32, &dims(&[DIM]));
        body.input("b", F32, &dims(&[self.size]));
        body.input("c", F32, &dims(&[self.size]));
        let [end, ends, column] = [vec![-1], vec![-1, -2], vec![-2]].map(|axes| body.ints(&[axes.len() as i64], &axes));
        let factor = match self.is_expanded {
            true => "factor".to_owned(),
            false => body.node("Unsqueeze", &["factor", &ends], &[]),
        };
        let kept = body.node("Mul", &[&factor, "h"], &[]);
        let written = scaled(&mut body, "written", self.writes);
        let written = body.node("Unsqueeze", &[&written, &end], &[]);
        let key = body.node("Unsqueeze", &["b", &column], &[]);
        let added = body.node("Mul", &[&written, &key], &[]);
        body.node_to("Add", &[&kept, &added], &["next"], &[]);
        let query = body.node("Unsqueeze", &["c", &column], &[]);
        let products = body.node("Mul", &["next", &query], &[]);
        body.node_to("ReduceSum", &[&products, &end], &["y"], &[Attr::Int("keepdims", 0)]);
        body.output("next", F32, &dims(&whole));
        body.output("y", F32, &dims(&[DIM]));
        Attr::Graph("body", body.fields.clone().text(2, "token"))
    }

    /// The whole layer: `[batch, tokens, channels]` and two others to the same.
    pub fn layer(self, graph: &mut Graph, [x, key, query]: [&str; 3]) -> String {
        port(graph, ["past_ssm.0", "present_ssm.0"], F32, &[HEADS, DIM, self.size]);
        let step = self.step(graph, x);
        let a: Vec<f32> = (0..HEADS).map(|head| -0.3 - head as f32 * 0.2).collect();
        let a = graph.floats(&[HEADS], &a);
        let decays = graph.node("Mul", &[&step, &a], &[]);
        let mut decay = graph.node("Exp", &[&decays], &[]);
        if self.is_expanded {
            let ends = graph.ints(&[2], &[-1, -2]);
            decay = graph.node("Unsqueeze", &[&decay, &ends], &[]);
        }
        let (shape, last) = (graph.ints(&[4], &[0, 0, HEADS, DIM]), graph.ints(&[1], &[-1]));
        let rows = graph.node("Reshape", &[x, &shape], &[]);
        let steps = graph.node("Unsqueeze", &[&step, &last], &[]);
        let written = graph.node("Mul", &[&rows, &steps], &[]);
        let (b, c) = (self.side(graph, key), self.side(graph, query));
        let (state, read) = (graph.fresh("state"), graph.fresh("read"));
        let attributes = [
            self.body(),
            Attr::Int("num_scan_inputs", 4),
            Attr::Ints("scan_input_axes", vec![1; 4]),
            Attr::Ints("scan_output_axes", vec![1]),
        ];
        graph.node_to("Scan", &["past_ssm.0", &decay, &written, &b, &c], &[&state, &read], &attributes);
        graph.node_to("Identity", &[&state], &["present_ssm.0"], &[]);
        let d = graph.weight(&[HEADS, 1], 1.);
        let skipped = graph.node("Mul", &[&rows, &d], &[]);
        let sum = graph.node("Add", &[&read, &skipped], &[]);
        let packed = graph.ints(&[3], &[0, 0, CHANNELS]);
        graph.node("Reshape", &[&sum, &packed], &[])
    }
}
