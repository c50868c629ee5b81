//! The operators of the domain `kvtide`, called by onnxruntime: attention, layers that keep a state, and products.
//!
//! ```text
//! Run                                    on the calling thread
//!   kernel of layer 0                    queries, keys and values in onnxruntime's memory
//!     write K and V to the step's pages
//!     attend into onnxruntime's output   shared through onnxruntime's own threads
//!   kernel of layer 1                    inputs in onnxruntime's memory
//!     compute the states in their slots, and onnxruntime's output
//! ```
//!
//! A kernel (`kernel.rs`, `state_kernel.rs`) finds the step being computed in the state that its session's kernels share.
//! A product (`product_kernel.rs`, `block_kernel.rs`) needs none.
//! `kvtide-onnx` writes the attributes of its nodes. There is one operator per name and element type: onnxruntime asks
//! each operator which type it takes.
//!
//! No panic reaches onnxruntime. A kernel's error is stored in the shared state: onnxruntime reports it in its own
//! words, and the caller gets the original.
#![expect(unsafe_code, reason = "a C library calls these functions and passes its own memory")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use kvtide_tensor::DType;

use super::api::{CustomOp, KernelContext, KernelInfo, Status, VERSION, number};
use super::block_kernel::BlockKernel;
use super::info::Info;
use super::kernel::{Kernel, KernelCall};
use super::product_kernel::ProductKernel;
use super::shared::{ELEMENTS, Shared};
use super::state_kernel::StateKernel;
use super::state_node::StateOperator;
use crate::border::handle::catch;

/// An operator of one element type, and the state of its session. Its address must not change as long as the session
/// lives.
#[repr(C)]
pub(super) struct Operator {
    /// The first field, so that a pointer to it is a pointer to the whole struct.
    pub table: CustomOp,
    kind: Kind,
    pub element: c_int,
    /// The same type.
    pub dtype: DType,
    pub shared: Arc<Shared>,
}

#[derive(Clone, Copy)]
enum Kind {
    Attention,
    Product,
    /// A product of rows in floats with packed weights of the element type.
    PackedProduct,
    BlockProduct,
    State(StateOperator),
}

/// A node of a session.
enum NodeKernel {
    Attention(Kernel),
    Product(ProductKernel),
    BlockProduct(BlockKernel),
    State(StateKernel),
}

// SAFETY: the table consists of functions.
unsafe impl Send for Operator {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Operator {}

impl Operator {
    /// One operator per name and element type. Their addresses are stable as long as the slice lives.
    pub fn all(shared: &Arc<Shared>) -> Box<[Operator]> {
        let kinds = [Kind::Attention, Kind::Product, Kind::PackedProduct, Kind::BlockProduct]
            .into_iter()
            .chain(StateOperator::ALL.map(Kind::State));
        let of = |kind| {
            ELEMENTS.iter().map(move |&(element, dtype)| Operator {
                table: TABLE,
                kind,
                element,
                dtype,
                shared: shared.clone(),
            })
        };
        kinds.flat_map(of).collect()
    }

    /// # Safety
    ///
    /// `operator` is the table of a live [`Operator`].
    unsafe fn of<'a>(operator: *const CustomOp) -> &'a Operator {
        // SAFETY: the table is the first field of the struct.
        unsafe { &*operator.cast::<Operator>() }
    }
}

/// The places of inputs behind queries, keys and values.
pub(super) const POSITIONS: usize = 3;
pub(super) const COSINES: usize = 4;
pub(super) const SINES: usize = 5;

/// The places of the inputs of a product with weights of 4 bits; three more are those of its gate.
const ROWS: usize = 0;
pub(super) const CODES: usize = 1;
pub(super) const SCALES: usize = 2;
pub(super) const ZEROS: usize = 3;
pub(super) const GATE: usize = 4;

const TABLE: CustomOp = CustomOp {
    version: VERSION,
    create_kernel: None,
    get_name: name,
    get_execution_provider_type: any_provider,
    get_input_type: input_element,
    get_input_type_count: inputs,
    get_output_type: output_element,
    get_output_type_count: one,
    kernel_compute: None,
    kernel_destroy: destroy,
    get_input_characteristic: needed,
    get_output_characteristic: required,
    get_input_memory_type: ordinary,
    get_variadic_input_min_arity: arity,
    get_variadic_input_homogeneity: arity,
    get_variadic_output_min_arity: arity,
    get_variadic_output_homogeneity: arity,
    create_kernel_v2: create,
    kernel_compute_v2: compute,
    // The rewrite declares the shapes of outputs.
    infer_output_shape_fn: None,
    get_start_version: arity,
    get_end_version: last_version,
};

unsafe extern "system" fn name(operator: *const CustomOp) -> *const c_char {
    // SAFETY: the library passes the pointer that it was given.
    match unsafe { Operator::of(operator) }.kind {
        Kind::Attention => c"Attention".as_ptr(),
        Kind::Product => c"MatMul".as_ptr(),
        Kind::PackedProduct => c"PackedMatMul".as_ptr(),
        Kind::BlockProduct => c"MatMulNBits".as_ptr(),
        Kind::State(operator) => operator.name().as_ptr(),
    }
}

/// No name means the CPU provider.
unsafe extern "system" fn any_provider(_: *const CustomOp) -> *const c_char {
    std::ptr::null()
}

unsafe extern "system" fn output_element(operator: *const CustomOp, _: usize) -> c_int {
    // SAFETY: the library passes the pointer that it was given.
    let operator = unsafe { Operator::of(operator) };
    match operator.kind {
        Kind::PackedProduct => number::FLOAT,
        _ => operator.element,
    }
}

unsafe extern "system" fn input_element(operator: *const CustomOp, index: usize) -> c_int {
    // SAFETY: the library passes the pointer that it was given.
    let operator = unsafe { Operator::of(operator) };
    match operator.kind {
        Kind::Attention if index == POSITIONS => number::INT64,
        Kind::PackedProduct if index == ROWS => number::FLOAT,
        Kind::BlockProduct if ![ROWS, SCALES, GATE + SCALES - CODES].contains(&index) => number::UINT8,
        _ => operator.element,
    }
}

unsafe extern "system" fn inputs(operator: *const CustomOp) -> usize {
    // SAFETY: the library passes the pointer that it was given.
    match unsafe { Operator::of(operator) }.kind {
        Kind::Attention => SINES + 1,
        Kind::Product | Kind::PackedProduct => 2,
        Kind::BlockProduct => GATE + 3,
        Kind::State(operator) => operator.inputs().len(),
    }
}

unsafe extern "system" fn one(_: *const CustomOp) -> usize {
    1
}

unsafe extern "system" fn needed(operator: *const CustomOp, index: usize) -> c_int {
    // SAFETY: the library passes the pointer that it was given.
    let required = match unsafe { Operator::of(operator) }.kind {
        // Queries may contain keys and values, and only some nodes rotate.
        Kind::Attention => 1,
        Kind::Product | Kind::PackedProduct => 2,
        Kind::BlockProduct => ZEROS,
        Kind::State(operator) => operator.required(),
    };
    if index < required { number::REQUIRED } else { number::OPTIONAL }
}

unsafe extern "system" fn required(_: *const CustomOp, _: usize) -> c_int {
    number::REQUIRED
}

unsafe extern "system" fn ordinary(_: *const CustomOp, _: usize) -> c_int {
    number::DEFAULT_MEMORY
}

unsafe extern "system" fn arity(_: *const CustomOp) -> c_int {
    1
}

unsafe extern "system" fn last_version(_: *const CustomOp) -> c_int {
    c_int::MAX
}

unsafe extern "system" fn create(
    operator: *const CustomOp,
    _: *const c_void,
    info: *const KernelInfo,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: the library passes the pointer that it was given.
    let operator = unsafe { Operator::of(operator) };
    operator.shared.answer(|| {
        let (shared, dtype) = (&operator.shared, operator.dtype);
        // SAFETY: the info lives as long as this call.
        let info = unsafe { Info::of(shared.library, info) };
        let kernel = match operator.kind {
            Kind::Attention => NodeKernel::Attention(Kernel::read(shared, dtype, &info)?),
            Kind::Product => NodeKernel::Product(ProductKernel::read(shared, dtype, &info)),
            Kind::PackedProduct => NodeKernel::Product(ProductKernel::packed(shared, dtype, &info)?),
            Kind::BlockProduct => NodeKernel::BlockProduct(BlockKernel::read(shared, &info)?),
            Kind::State(operator) => NodeKernel::State(StateKernel::read(shared, dtype, operator, &info)?),
        };
        // SAFETY: the library provides the place for its kernel.
        unsafe { *out = Box::into_raw(Box::new(kernel)).cast() };
        Ok(())
    })
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: `create` made it, and the library does not use it after this call.
    let kernel = unsafe { Box::from_raw(kernel.cast::<NodeKernel>()) };
    // A panic here is ignored: the kernel is dropped in any case.
    let _ = catch(|| drop(kernel));
}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut KernelContext) -> Status {
    // SAFETY: `create` made it.
    match unsafe { &*kernel.cast::<NodeKernel>() } {
        NodeKernel::Attention(kernel) => kernel.shared.answer(|| KernelCall { kernel, context }.compute()),
        NodeKernel::Product(kernel) => kernel.shared.answer(|| kernel.compute(context)),
        NodeKernel::BlockProduct(kernel) => kernel.shared.answer(|| kernel.compute(context)),
        NodeKernel::State(kernel) => kernel.shared.answer(|| kernel.compute(context)),
    }
}
