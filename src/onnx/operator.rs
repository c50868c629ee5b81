//! The operator `kvtide::Attention`, as a library of onnxruntime calls it.
//!
//! ```text
//! Run                                    on the thread of the caller
//!   kernel of layer 0                    queries, keys and values in onnxruntime's memory
//!     write K and V to the step's pages
//!     attend into onnxruntime's output   shared through onnxruntime's own threads
//!   kernel of layer 1 ..
//! ```
//!
//! A kernel (`kernel.rs`) finds the step that is computed in what its session shares. Attributes are those that `kvtide-onnx` writes. There is an
//! operator for each element type: a library asks each which one it takes.
//!
//! No panic crosses to the library. What a kernel was refused with is kept aside: the library tells it in its own words, and the caller
//! gets the original.
#![expect(unsafe_code, reason = "a C library calls these functions and gives memory of its own")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::api::{CustomOp, KernelContext, KernelInfo, ShapeContext, Status, VERSION, number};
use super::kernel::{Kernel, KernelCall};
use super::shared::{ELEMENTS, Shared};
use crate::border::handle::catch;
use crate::border::refusal::Outcome;

/// An operator of one element type, and what its session shares. It has to stay where it is as long as the session.
#[repr(C)]
pub(super) struct Operator {
    /// First, so that a pointer to it is one to the whole.
    pub table: CustomOp,
    pub element: c_int,
    pub shared: Arc<Shared>,
}

// SAFETY: the table has functions alone.
unsafe impl Send for Operator {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Operator {}

impl Operator {
    /// One for each element type. They stay where they are in memory as long as the slice lives.
    pub fn all(shared: &Arc<Shared>) -> Box<[Operator]> {
        ELEMENTS.iter().map(|&(element, _)| Operator { table: TABLE, element, shared: shared.clone() }).collect()
    }

    /// # Safety
    ///
    /// `operator` is the table of an [`Operator`] that lives.
    unsafe fn of<'a>(operator: *const CustomOp) -> &'a Operator {
        // SAFETY: the table is the first field of the whole.
        unsafe { &*operator.cast::<Operator>() }
    }
}

const TABLE: CustomOp = CustomOp {
    version: VERSION,
    create_kernel: None,
    get_name: name,
    get_execution_provider_type: any_provider,
    get_input_type: element,
    get_input_type_count: three,
    get_output_type: element,
    get_output_type_count: one,
    kernel_compute: None,
    kernel_destroy: destroy,
    get_input_characteristic: required,
    get_output_characteristic: required,
    get_input_memory_type: ordinary,
    get_variadic_input_min_arity: arity,
    get_variadic_input_homogeneity: arity,
    get_variadic_output_min_arity: arity,
    get_variadic_output_homogeneity: arity,
    create_kernel_v2: create,
    kernel_compute_v2: compute,
    infer_output_shape_fn: infer,
    get_start_version: arity,
    get_end_version: last_version,
};

unsafe extern "system" fn name(_: *const CustomOp) -> *const c_char {
    c"Attention".as_ptr()
}

/// The CPU's.
unsafe extern "system" fn any_provider(_: *const CustomOp) -> *const c_char {
    std::ptr::null()
}

unsafe extern "system" fn element(operator: *const CustomOp, _: usize) -> c_int {
    // SAFETY: the library asks with what it was given.
    unsafe { Operator::of(operator) }.element
}

unsafe extern "system" fn three(_: *const CustomOp) -> usize {
    3
}

unsafe extern "system" fn one(_: *const CustomOp) -> usize {
    1
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

/// The output has the queries' shape, where values are as wide as they; elsewhere it is not said.
unsafe extern "system" fn infer(operator: *const CustomOp, context: *mut ShapeContext) -> Status {
    // SAFETY: the library asks with what it was given.
    let library = unsafe { Operator::of(operator) }.shared.library;
    let attribute = |name: &CStr| -> Outcome<i64> {
        let mut found = std::ptr::null();
        // SAFETY: the context is that of this call; places to write to are locals, and the attribute is a whole number.
        library.check(unsafe { (library.api.inferred_attribute)(context, name.as_ptr(), &mut found) })?;
        let (mut value, mut bytes) = (0i64, 0);
        let data = (&raw mut value).cast();
        // SAFETY: as above.
        library.check(unsafe { (library.api.read_attribute)(found, number::INT_ATTRIBUTE, data, 8, &mut bytes) })?;
        Ok(value)
    };
    let same = || -> Outcome<()> {
        if attribute(c"head_dim")? != attribute(c"value_dim")? {
            return Ok(());
        }
        // SAFETY: as above; what is asked for is given on at once.
        let info = library.make(|out| unsafe { (library.api.inferred_input)(context, 0, out) })?;
        // SAFETY: as above.
        library.check(unsafe { (library.api.infer_output)(context, 0, info) })
    };
    match catch(same).unwrap_or_else(Err) {
        Ok(()) => null_mut(),
        Err(refusal) => library.status(&refusal.message),
    }
}

unsafe extern "system" fn create(
    operator: *const CustomOp,
    _: *const c_void,
    info: *const KernelInfo,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: the library asks with what it was given.
    let operator = unsafe { Operator::of(operator) };
    operator.shared.answer(|| {
        let kernel = Kernel::read(&operator.shared, operator.element, info)?;
        // SAFETY: the library gives a place for its kernel.
        unsafe { *out = Box::into_raw(Box::new(kernel)).cast() };
        Ok(())
    })
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: it is what `create` made, and this is the last that the library does with it.
    let kernel = unsafe { Box::from_raw(kernel.cast::<Kernel>()) };
    // A panic on the way out leaves nothing behind that could be used.
    let _ = catch(|| drop(kernel));
}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut KernelContext) -> Status {
    // SAFETY: it is what `create` made.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    kernel.shared.answer(|| KernelCall { kernel, context }.compute())
}
