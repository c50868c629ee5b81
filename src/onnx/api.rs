//! The functions of onnxruntime's C API that kvtide uses, read from its table, and the structs that onnxruntime reads.
//!
//! `OrtApi` is a struct of function pointers that only grows at its end, so each function keeps its index for ever. The
//! numbers here are those indices. `scripts/onnx/places.mjs` compares them, and the fields of [`CustomOp`], with an
//! onnxruntime header. The struct's size is not checked otherwise: every library that supports version 17 has all of
//! these functions.
#![expect(unsafe_code, reason = "a table of C functions is read from memory of a library")]

use std::ffi::{c_char, c_int, c_void};

/// The API version that is requested: that of onnxruntime 1.17.
pub const VERSION: u32 = 17;

/// A character of a path.
#[cfg(windows)]
pub type PathChar = u16;
/// A character of a path.
#[cfg(not(windows))]
pub type PathChar = c_char;

macro_rules! opaque {
    ($($(#[$about:meta])* $name:ident;)+) => {
        $($(#[$about])* #[repr(C)] pub struct $name { _private: [u8; 0] })+
    };
}

opaque! {
    /// The library's global state, one per process.
    Env;
    /// An error; null for success.
    StatusObject;
    /// A loaded model.
    SessionObject;
    /// Options for creating a session.
    SessionOptions;
    /// A tensor.
    Value;
    /// The device and allocator of tensors.
    MemoryInfo;
    /// An allocator; it begins with an [`AllocatorTable`].
    Allocator;
    /// A tensor's element type and dimensions.
    TensorInfo;
    /// The type of an input or output.
    TypeInfo;
    /// The custom operators of one domain.
    CustomOpDomain;
    /// The attributes of a node.
    KernelInfo;
    /// One call of a kernel.
    KernelContext;
}

/// The result of most functions.
pub type Status = *mut StatusObject;

/// Values of the API's enums.
pub mod number {
    use std::ffi::c_int;

    /// The generic error code.
    pub const FAIL: c_int = 1;
    /// The log level of onnxruntime-node.
    pub const WARNING: c_int = 2;
    /// The level of messages that end the process. kvtide causes none of these.
    pub const FATAL: c_int = 4;
    /// An allocator without an arena, and one with.
    pub const DEVICE_ALLOCATOR: c_int = 0;
    pub const ARENA: c_int = 1;
    /// Ordinary CPU memory.
    pub const DEFAULT_MEMORY: c_int = 0;
    /// Required and optional inputs and outputs.
    pub const REQUIRED: c_int = 0;
    pub const OPTIONAL: c_int = 1;
    /// Element types.
    pub const FLOAT: c_int = 1;
    pub const UINT8: c_int = 2;
    pub const INT32: c_int = 6;
    pub const INT64: c_int = 7;
    pub const FLOAT16: c_int = 10;
    pub const BFLOAT16: c_int = 16;
}

macro_rules! functions {
    ($($place:literal $c:ident $name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)+) => {
        /// The functions.
        pub struct Api {
            $(pub $name: unsafe extern "system" fn($($argument: $type),*) $(-> $answer)?,)+
        }

        impl Api {
            /// Reads the table; `None` if a function is missing.
            ///
            /// # Safety
            ///
            /// `table` is the result of an onnxruntime's `GetApi` for [`VERSION`].
            pub unsafe fn read(table: *const c_void) -> Option<Api> {
                // SAFETY: the struct of this version has more entries than are read, and each holds a function pointer.
                let entry = |place: usize| unsafe { *table.cast::<Option<unsafe extern "system" fn()>>().add(place) };
                Some(Api {
                    // SAFETY: the function at this index has this type, see the head of this file.
                    $($name: unsafe {
                        std::mem::transmute::<unsafe extern "system" fn(), unsafe extern "system" fn($($type),*) $(-> $answer)?>(entry($place)?)
                    },)+
                })
            }
        }
    };
}

functions! {
    0 CreateStatus create_status(code: c_int, message: *const c_char) -> Status;
    2 GetErrorMessage error_message(status: *const StatusObject) -> *const c_char;
    3 CreateEnv create_env(level: c_int, name: *const c_char, out: *mut *mut Env) -> Status;
    7 CreateSession create_session(env: *const Env, path: *const PathChar, options: *const SessionOptions, out: *mut *mut SessionObject) -> Status;
    8 CreateSessionFromArray create_session_from_array(env: *const Env, model: *const c_void, bytes: usize, options: *const SessionOptions, out: *mut *mut SessionObject) -> Status;
    9 Run run(session: *mut SessionObject, options: *const c_void, input_names: *const *const c_char, inputs: *const *const Value, input_count: usize, output_names: *const *const c_char, output_count: usize, outputs: *mut *mut Value) -> Status;
    10 CreateSessionOptions create_session_options(out: *mut *mut SessionOptions) -> Status;
    17 DisableMemPattern disable_mem_pattern(options: *mut SessionOptions) -> Status;
    22 SetSessionLogSeverityLevel set_log_level(options: *mut SessionOptions, level: c_int) -> Status;
    24 SetIntraOpNumThreads set_intra_op_threads(options: *mut SessionOptions, count: c_int) -> Status;
    25 SetInterOpNumThreads set_inter_op_threads(options: *mut SessionOptions, count: c_int) -> Status;
    26 CreateCustomOpDomain create_domain(name: *const c_char, out: *mut *mut CustomOpDomain) -> Status;
    27 CustomOpDomain_Add add_to_domain(domain: *mut CustomOpDomain, operator: *const CustomOp) -> Status;
    28 AddCustomOpDomain add_domain(options: *mut SessionOptions, domain: *mut CustomOpDomain) -> Status;
    30 SessionGetInputCount input_count(session: *const SessionObject, out: *mut usize) -> Status;
    31 SessionGetOutputCount output_count(session: *const SessionObject, out: *mut usize) -> Status;
    33 SessionGetInputTypeInfo input_type(session: *const SessionObject, index: usize, out: *mut *mut TypeInfo) -> Status;
    36 SessionGetInputName input_name(session: *const SessionObject, index: usize, allocator: *mut Allocator, out: *mut *mut c_char) -> Status;
    37 SessionGetOutputName output_name(session: *const SessionObject, index: usize, allocator: *mut Allocator, out: *mut *mut c_char) -> Status;
    49 CreateTensorWithDataAsOrtValue create_tensor(memory: *const MemoryInfo, data: *mut c_void, bytes: usize, dims: *const i64, rank: usize, element: c_int, out: *mut *mut Value) -> Status;
    51 GetTensorMutableData tensor_data(value: *mut Value, out: *mut *mut c_void) -> Status;
    55 CastTypeInfoToTensorInfo tensor_type(info: *const TypeInfo, out: *mut *const TensorInfo) -> Status;
    60 GetTensorElementType element_type(info: *const TensorInfo, out: *mut c_int) -> Status;
    61 GetDimensionsCount rank(info: *const TensorInfo, out: *mut usize) -> Status;
    62 GetDimensions dims(info: *const TensorInfo, out: *mut i64, rank: usize) -> Status;
    65 GetTensorTypeAndShape tensor_info(value: *const Value, out: *mut *mut TensorInfo) -> Status;
    69 CreateCpuMemoryInfo create_cpu_memory(allocator: c_int, memory: c_int, out: *mut *mut MemoryInfo) -> Status;
    76 AllocatorFree allocator_free(allocator: *mut Allocator, memory: *mut c_void) -> Status;
    78 GetAllocatorWithDefaultOptions default_allocator(out: *mut *mut Allocator) -> Status;
    85 KernelInfoGetAttribute_float attribute_float(info: *const KernelInfo, name: *const c_char, out: *mut f32) -> Status;
    86 KernelInfoGetAttribute_int64 attribute_int(info: *const KernelInfo, name: *const c_char, out: *mut i64) -> Status;
    90 KernelContext_GetInput kernel_input(context: *const KernelContext, index: usize, out: *mut *const Value) -> Status;
    91 KernelContext_GetOutput kernel_output(context: *mut KernelContext, index: usize, dims: *const i64, rank: usize, out: *mut *mut Value) -> Status;
    93 ReleaseStatus release_status(status: *mut StatusObject);
    94 ReleaseMemoryInfo release_memory(memory: *mut MemoryInfo);
    95 ReleaseSession release_session(session: *mut SessionObject);
    96 ReleaseValue release_value(value: *mut Value);
    98 ReleaseTypeInfo release_type(info: *mut TypeInfo);
    99 ReleaseTensorTypeAndShapeInfo release_tensor_info(info: *mut TensorInfo);
    100 ReleaseSessionOptions release_session_options(options: *mut SessionOptions);
    101 ReleaseCustomOpDomain release_domain(domain: *mut CustomOpDomain);
    130 AddSessionConfigEntry add_config(options: *mut SessionOptions, key: *const c_char, value: *const c_char) -> Status;
    162 KernelInfoGetAttributeArray_float attribute_floats(info: *const KernelInfo, name: *const c_char, out: *mut f32, count: *mut usize) -> Status;
    176 RegisterAllocator register_allocator(env: *mut Env, allocator: *mut Allocator) -> Status;
    249 KernelInfoGetConstantInput_tensor constant_input(info: *const KernelInfo, index: usize, is_constant: *mut c_int, out: *mut *const Value) -> Status;
    274 KernelContext_ParallelFor parallel_for(context: *const KernelContext, work: unsafe extern "C" fn(*mut c_void, usize), count: usize, batches: usize, data: *mut c_void) -> Status;
}

/// The result of a library's `OrtGetApiBase`.
#[repr(C)]
pub struct ApiBase {
    pub get_api: unsafe extern "system" fn(version: u32) -> *const c_void,
    pub version: unsafe extern "system" fn() -> *const c_char,
}

/// The start of `OrtAllocator`. A library of a later version reads no further than its version says. Allocation may throw.
#[repr(C)]
pub struct AllocatorTable {
    pub version: u32,
    pub alloc: unsafe extern "C-unwind" fn(allocator: *mut Allocator, bytes: usize) -> *mut c_void,
    pub free: unsafe extern "C-unwind" fn(allocator: *mut Allocator, memory: *mut c_void),
    pub info: unsafe extern "C-unwind" fn(allocator: *const Allocator) -> *const MemoryInfo,
}

type OfOperator<T> = unsafe extern "system" fn(operator: *const CustomOp) -> T;
type OfInput<T> = unsafe extern "system" fn(operator: *const CustomOp, index: usize) -> T;

/// `OrtCustomOp`: the functions through which onnxruntime queries an operator. Fields in the order of version 17.
#[repr(C)]
pub struct CustomOp {
    pub version: u32,
    pub create_kernel: Option<unsafe extern "system" fn()>,
    pub get_name: OfOperator<*const c_char>,
    pub get_execution_provider_type: OfOperator<*const c_char>,
    pub get_input_type: OfInput<c_int>,
    pub get_input_type_count: OfOperator<usize>,
    pub get_output_type: OfInput<c_int>,
    pub get_output_type_count: OfOperator<usize>,
    pub kernel_compute: Option<unsafe extern "system" fn()>,
    pub kernel_destroy: unsafe extern "system" fn(kernel: *mut c_void),
    pub get_input_characteristic: OfInput<c_int>,
    pub get_output_characteristic: OfInput<c_int>,
    pub get_input_memory_type: OfInput<c_int>,
    pub get_variadic_input_min_arity: OfOperator<c_int>,
    pub get_variadic_input_homogeneity: OfOperator<c_int>,
    pub get_variadic_output_min_arity: OfOperator<c_int>,
    pub get_variadic_output_homogeneity: OfOperator<c_int>,
    pub create_kernel_v2: unsafe extern "system" fn(
        operator: *const CustomOp,
        api: *const c_void,
        info: *const KernelInfo,
        kernel: *mut *mut c_void,
    ) -> Status,
    pub kernel_compute_v2: unsafe extern "system" fn(kernel: *mut c_void, context: *mut KernelContext) -> Status,
    pub infer_output_shape_fn: Option<unsafe extern "system" fn()>,
    pub get_start_version: OfOperator<c_int>,
    pub get_end_version: OfOperator<c_int>,
}
