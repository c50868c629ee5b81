//! ggml's attention in its fastest configuration: built for this machine, its work buffer aligned to a cache line.
//!
//! *Flash* is its single operator for all of attention, over rows in llama.cpp's layout (tokens, then heads) and,
//! *head-major*, with the rows of each head together. *Matrix products* is the way without that operator: products,
//! softmax, and products with V transposed beforehand. Low-bit V works only with flash. Its crate needs cmake and
//! libclang: without the feature `ggml` these lanes are absent.
#![expect(unsafe_code, reason = "another library's functions, over memory that lives as long as the graph")]

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use half::f16;
use kvtide_bench::{Lane, Result, Role};
use kvtide_tensor::DType;
use llama_cpp_sys_2::*;

use super::layers::{Layers, QUERY_HEADS};
use crate::tokens::{HEAD_DIM, HEADS};

/// The element type of a lane's K and V.
#[derive(Clone, Copy, PartialEq)]
pub enum Elements {
    F32,
    F16,
    Q8,
}

impl Elements {
    /// Returns the type for a cache's dtype, if ggml supports it.
    fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Elements::F32),
            DType::F16 => Some(Elements::F16),
            _ => None,
        }
    }

    fn kind(self) -> ggml_type {
        match self {
            Elements::F32 => GGML_TYPE_F32,
            Elements::F16 => GGML_TYPE_F16,
            Elements::Q8 => GGML_TYPE_Q8_0,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Flash,
    HeadMajor,
    Products,
}

const WAYS: [(Way, &str); 3] =
    [(Way::Flash, "ggml flash"), (Way::HeadMajor, "ggml flash, head-major"), (Way::Products, "ggml matrix products")];

/// A cache line, for aligned memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A graph of one layer's attention, with all its memory.
struct Graph {
    context: *mut ggml_context,
    graph: *mut ggml_cgraph,
    /// The memory of each tensor, and of the work buffer.
    memory: Vec<Vec<Line>>,
    out: *mut ggml_tensor,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `ggml_init`, and dropped once.
        unsafe { ggml_free(self.context) };
    }
}

impl Graph {
    fn new() -> Result<Self> {
        // SAFETY: plain calls; the context owns its memory.
        unsafe {
            ggml_cpu_init();
            let context = ggml_init(ggml_init_params { mem_size: 1 << 22, mem_buffer: null_mut(), no_alloc: true });
            if context.is_null() {
                return Err("ggml could not make a context".into());
            }
            Ok(Graph { context, graph: ggml_new_graph(context), memory: Vec::new(), out: null_mut() })
        }
    }

    fn room(&mut self, bytes: usize) -> *mut c_void {
        self.memory.push(vec![Line([0; 64]); bytes.div_ceil(64).max(1)]);
        self.memory.last_mut().map_or(null_mut(), |lines| lines.as_mut_ptr().cast())
    }

    /// Adds a tensor with these numbers, the innermost dimension first.
    fn tensor(&mut self, elements: Elements, dims: [usize; 3], floats: &[f32]) -> *mut ggml_tensor {
        assert_eq!(dims.iter().product::<usize>(), floats.len(), "as many numbers as the tensor has");
        let [inner, middle, outer] = dims.map(|dim| dim as i64);
        // SAFETY: the memory is as large as the tensor, and lives as long as the graph.
        unsafe {
            let tensor = ggml_new_tensor_4d(self.context, elements.kind(), inner, middle, outer, 1);
            (*tensor).data = self.room(ggml_nbytes(tensor));
            let data = (*tensor).data;
            match elements {
                Elements::F32 => data.cast::<f32>().copy_from_nonoverlapping(floats.as_ptr(), floats.len()),
                Elements::F16 => {
                    let halves: Vec<f16> = floats.iter().map(|float| f16::from_f32(*float)).collect();
                    data.cast::<f16>().copy_from_nonoverlapping(halves.as_ptr(), halves.len());
                }
                Elements::Q8 => {
                    ggml_quantize_chunk(elements.kind(), floats.as_ptr(), data, 0, middle * outer, inner, null());
                }
            }
            tensor
        }
    }

    /// Allocates memory for computed tensors, and for the work buffer.
    fn finish(&mut self, out: *mut ggml_tensor) {
        self.out = out;
        // SAFETY: tensors of this graph; views have their memory already.
        unsafe {
            ggml_build_forward_expand(self.graph, out);
            for index in 0..ggml_graph_n_nodes(self.graph) {
                let node = ggml_graph_node(self.graph, index);
                if (*node).data.is_null() && (*node).view_src.is_null() {
                    (*node).data = self.room(ggml_nbytes(node));
                } else if (*node).data.is_null() {
                    (*node).data = (*(*node).view_src).data.byte_add((*node).view_offs);
                }
            }
            let plan = ggml_graph_plan(self.graph, 1, null_mut());
            self.room(plan.work_size);
        }
    }

    /// Computes everything, on one thread.
    fn run(&mut self) -> Result<()> {
        // SAFETY: every tensor has its memory; the work buffer has the size of the same plan.
        unsafe {
            let mut plan = ggml_graph_plan(self.graph, 1, null_mut());
            plan.work_data = self.memory.last_mut().map_or(null_mut(), |lines| lines.as_mut_ptr().cast());
            match ggml_graph_compute(self.graph, &mut plan) {
                GGML_STATUS_SUCCESS => Ok(()),
                status => Err(format!("ggml returned status {status}").into()),
            }
        }
    }
}

/// Transposes `[outer, middle, inner]` to `[middle, outer, inner]`, or with `turned` to `[outer, inner, middle]`.
fn moved(floats: &[f32], [outer, middle, inner]: [usize; 3], turned: bool) -> Vec<f32> {
    let mut moved = vec![0.; floats.len()];
    for (at, float) in floats.iter().enumerate() {
        let (first, second, third) = (at / inner / middle, at / inner % middle, at % inner);
        let to =
            if turned { (first * inner + third) * middle + second } else { (second * outer + first) * inner + third };
        moved[to] = *float;
    }
    moved
}

/// K, V and queries as floats, each `[heads, rows, dim]`.
struct Numbers {
    k: Vec<f32>,
    v: Vec<f32>,
    q: Vec<f32>,
    keys: usize,
    queries: usize,
}

impl Numbers {
    fn of(layers: &Layers) -> Result<Self> {
        let floats = |tensor: &candle_core::Tensor| -> Result<Vec<f32>> {
            Ok(tensor.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()?)
        };
        let [k, v] = &layers.tensors()?[0];
        let queries = layers.q.dim(2)?;
        Ok(Numbers { k: floats(k)?, v: floats(v)?, q: floats(&layers.q)?, keys: layers.keys, queries })
    }

    fn graph(&self, way: Way, elements: Elements) -> Result<Graph> {
        let mut graph = Graph::new()?;
        let (keys, queries, scale) = (self.keys, self.queries, 1. / (HEAD_DIM as f32).sqrt());
        let q = graph.tensor(Elements::F32, [HEAD_DIM, queries, QUERY_HEADS], &self.q);
        let mask =
            if queries == 1 { null_mut() } else { graph.tensor(Elements::F16, [keys, queries, 1], &self.mask()) };
        let heads_first = [HEADS, keys, HEAD_DIM];
        // SAFETY: tensors of this graph, with the shapes that each operator expects.
        let out = unsafe {
            let context = graph.context;
            let mut flash = |of: &[f32]| match way {
                Way::Flash => {
                    let rows = graph.tensor(elements, [HEAD_DIM, HEADS, keys], &moved(of, heads_first, false));
                    ggml_permute(context, rows, 0, 2, 1, 3)
                }
                _ => graph.tensor(elements, [HEAD_DIM, keys, HEADS], of),
            };
            let k = flash(&self.k);
            if way == Way::Products {
                let v = graph.tensor(elements, [keys, HEAD_DIM, HEADS], &moved(&self.v, heads_first, true));
                let weights = ggml_soft_max_ext(context, ggml_mul_mat(context, k, q), mask, scale, 0.);
                ggml_mul_mat(context, v, weights)
            } else {
                let v = flash(&self.v);
                ggml_flash_attn_ext(context, q, k, v, mask, scale, 0., 0.)
            }
        };
        graph.finish(out);
        Ok(graph)
    }

    /// Query `i` of the last ones sees the keys before it and itself.
    fn mask(&self) -> Vec<f32> {
        let seen = |query: usize| self.keys - self.queries + query;
        let row = |query: usize| (0..self.keys).map(move |key| if key > seen(query) { f32::NEG_INFINITY } else { 0. });
        (0..self.queries).flat_map(row).collect()
    }
}

/// Returns a lane for every way, over all layers, each with memory of its own.
pub fn lanes(layers: &Layers) -> Result<Vec<Lane<'static>>> {
    let Some(elements) = Elements::of(layers.dtype) else { return Ok(Vec::new()) };
    let numbers = Numbers::of(layers)?;
    WAYS.iter().map(|&(way, name)| lane(&numbers, way, elements, name, layers.kv.len())).collect()
}

/// Returns the lanes over 8-bit rows.
pub fn low_bit_lanes(layers: &Layers, count: usize) -> Result<Vec<Lane<'static>>> {
    let numbers = Numbers::of(layers)?;
    let lane = |&(way, name): &(Way, &str)| lane(&numbers, way, Elements::Q8, &format!("{name}, q8"), count);
    WAYS[..2].iter().map(lane).collect()
}

fn lane(numbers: &Numbers, way: Way, elements: Elements, name: &str, count: usize) -> Result<Lane<'static>> {
    let mut graphs = (0..count).map(|_| numbers.graph(way, elements)).collect::<Result<Vec<_>>>()?;
    Ok(Lane::timed(Role::Peer, name, count as u32, move |stopwatch| {
        stopwatch.time(|| graphs.iter_mut().try_for_each(Graph::run))
    }))
}

#[cfg(test)]
mod tests {
    use kvtide_tensor::attention::{AttendOptions, attend};

    use super::*;

    /// Returns the output as `[heads, queries, dim]`.
    fn output(graph: &mut Graph, way: Way, queries: usize) -> Vec<f32> {
        graph.run().unwrap();
        let mut out = vec![0f32; QUERY_HEADS * queries * HEAD_DIM];
        // SAFETY: the tensor has that many floats.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping((*graph.out).data.cast(), out.len()) };
        if way == Way::Products { out } else { moved(&out, [queries, QUERY_HEADS, HEAD_DIM], false) }
    }

    #[test]
    fn every_way_gives_what_attend_gives() {
        for (dtype, queries) in [(DType::F32, 1), (DType::F32, 5), (DType::F16, 1), (DType::F16, 5)] {
            let layers = Layers::new(dtype, 1, queries, 64).unwrap();
            let ours = attend(&layers.q, &layers.kv[0], &AttendOptions::default()).unwrap().out.to_f32().unwrap();
            let numbers = Numbers::of(&layers).unwrap();
            let kinds = [(Elements::of(dtype).unwrap(), 3, 1e-2), (Elements::Q8, 2, 5e-2)];
            for (elements, ways, off) in kinds {
                for (way, name) in &WAYS[..ways] {
                    let theirs = output(&mut numbers.graph(*way, elements).unwrap(), *way, queries);
                    let farthest =
                        ours.iter().zip(&theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0., f32::max);
                    assert!(farthest < off, "{name}, {dtype}, {queries} queries: {farthest}");
                }
            }
        }
    }
}
