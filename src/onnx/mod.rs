//! ONNX models: `kvtide-onnx` reads and rewrites their graphs, and a loaded onnxruntime computes them. Attention runs
//! inside the graph, on the cache's pages, as the operator `kvtide::Attention`, and so do layers that keep a state. No
//! weights are read until a model is written or a session is created.
//!
//! ```text
//! open_graph.rs a parsed graph                             graph.rs       the same for JavaScript
//! rewritten.rs  a rewritten graph
//! library.rs    an onnxruntime that the process has loaded api.rs         the table of its functions
//! allocator.rs  memory of sessions in huge pages
//! operator.rs   the operators of the domain kvtide         kernel.rs      one attention node and its computation
//! info.rs       attributes of nodes                        rotary.rs      rotates its queries and keys
//! call.rs       a kernel's inputs, output, threads         state_kernel.rs   one node of a layer with a state
//! product_kernel.rs   the product of the head              block_kernel.rs   a product with weights of 4 bits
//! state_node.rs its computation                            native_state_node.rs   the same for JavaScript
//! shared.rs     state that the kernels of a session share
//! session.rs    a model loaded by onnxruntime              run.rs         one step of it
//! embeddings.rs the model of its embeddings                native_session.rs   the same for JavaScript
//! encoded.rs    keys and values of an encoder's states
//! ```

#[cfg(target_os = "linux")]
mod allocator;
mod api;
mod block_kernel;
mod call;
mod embeddings;
mod encoded;
mod graph;
mod info;
mod kernel;
mod library;
mod native_session;
mod native_state_node;
mod open_graph;
mod operator;
mod product_kernel;
mod rewritten;
mod rotary;
mod run;
mod session;
mod shared;
mod state_kernel;
mod state_node;
mod tensor;
