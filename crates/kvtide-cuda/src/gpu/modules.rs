//! The machine code of the kernels, loaded once per GPU, and its functions.
//!
//! A file has machine code for the GPUs that it was compiled for, and PTX, which the driver compiles for any other GPU when
//! it is loaded. O(1) per look-up.
//!
//! A function may use all the shared memory that a block can have; this is requested once, when it is loaded. Setting it
//! before each launch would race: the attribute belongs to the function, which all threads share, so a launch with a small
//! request could lower it between another thread's request and launch. The number of blocks per multiprocessor depends on
//! the memory that a launch uses, not on the maximum of its function.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use candle_core::cuda_backend::cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaFunction, CudaModule, DriverError};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;

macro_rules! modules {
    ($($name:ident $file:literal)+) => {
        /// A file of kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Module { $($name,)+ }

        impl Module {
            /// Its machine code and PTX.
            fn code(self) -> &'static [u8] {
                match self {
                    $(Module::$name => include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".fatbin")),)+
                }
            }
        }
    };
}

modules! {
    AttendDecode "attend_decode"
    AttendFloats "attend_floats"
    AttendMerge "attend_merge"
    AttendPrefill "attend_prefill"
    Boxes "boxes"
    Holes "holes"
    Pieces "pieces"
    Quantise "quantise"
    Shift "shift"
    Strips "strips"
}

/// Entries per context, by its address: contexts of GPUs live as long as the process.
type Loaded<K, V> = HashMap<(usize, K), V>;

static FUNCTIONS: RwLock<Option<Loaded<&'static str, CudaFunction>>> = RwLock::new(None);
static MODULES: Mutex<Option<Loaded<Module, Arc<CudaModule>>>> = Mutex::new(None);

/// The function of the kernel with this name on a GPU.
pub(super) fn function(
    context: &Arc<CudaContext>,
    of: Module,
    kernel: &'static str,
) -> Result<CudaFunction, DriverError> {
    let key = (Arc::as_ptr(context).addr(), kernel);
    if let Some(known) = FUNCTIONS.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|all| all.get(&key))
    {
        return Ok(known.clone());
    }
    let function = module(context, of)?.load_function(kernel)?;
    let most = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    // Memory that the kernel itself declares is subtracted.
    let declared = function.get_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
    function.set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most - declared)?;
    let mut functions = FUNCTIONS.write().unwrap_or_else(PoisonError::into_inner);
    functions.get_or_insert_default().insert(key, function.clone());
    Ok(function)
}

fn module(context: &Arc<CudaContext>, module: Module) -> Result<Arc<CudaModule>, DriverError> {
    let key = (Arc::as_ptr(context).addr(), module);
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let modules = modules.get_or_insert_default();
    if let Some(known) = modules.get(&key) {
        return Ok(known.clone());
    }
    let loaded = context.load_module(Ptx::from_binary(module.code().to_vec()))?;
    modules.insert(key, loaded.clone());
    Ok(loaded)
}
