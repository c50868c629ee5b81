//! A model loaded by onnxruntime, with kvtide's operator in it.
//!
//! The library reads the model and its weights, and has its own threads. During a step, idle ones spin: waking one for
//! each node would take longer than most nodes. At the end of the step they go to sleep, since spinning between two steps
//! would take the processor away from other threads. The library prints nothing: its errors become errors of the call.
#![expect(unsafe_code, reason = "a model is passed to a C library, and our tensors for the length of a call")]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::{Code, details};

use super::api::{CustomOpDomain, MemoryInfo, SessionObject, SessionOptions, number};
use super::encoded::Encoded;
use super::library::{Library, encoded, small};
use super::operator::Operator;
use super::shared::Shared;
use crate::border::refusal::{Outcome, Refusal};

/// Inputs of a rewritten graph, besides token ids.
pub(super) const POSITIONS: &str = "position_ids";
pub(super) const ROWS: &str = "logit_rows";
/// The input that rows of a caller replace parts of.
pub(super) const EMBEDS: &str = "inputs_embeds";
const LOGITS: &str = "logits";

/// A session with all objects that it is made of. They live as long as the library may call into them.
pub(super) struct Session {
    pub library: &'static Library,
    pub session: *mut SessionObject,
    domain: *mut CustomOpDomain,
    pub memory: *mut MemoryInfo,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub shared: Arc<Shared>,
    pub running: AtomicBool,
    /// Keys and values of an encoder's states, by number.
    pub encodings: Mutex<HashMap<u32, Arc<Encoded>>>,
    _operators: Box<[Operator]>,
}

// SAFETY: sessions may be used from any thread; the pointers belong to this session alone.
unsafe impl Send for Session {}
// SAFETY: `Run` may be called from any thread, and `running` admits one caller at a time.
unsafe impl Sync for Session {}

pub(super) struct Port {
    pub name: CString,
    pub element: c_int,
    /// The dimensions of an input, -1 for one without a size.
    pub dims: Vec<i64>,
}

pub(super) struct Options {
    pub threads: usize,
    pub folder: Option<CString>,
    pub purpose: Purpose,
}

/// The graph of a session.
pub(super) enum Purpose {
    /// A decoder. It takes ids, or these outputs of the model of embeddings.
    Decoder { embedded: Vec<String> },
    /// The model of embeddings of a decoder.
    Embeddings,
}

pub(super) enum ModelData {
    Path(String),
    Bytes(Vec<u8>),
}

impl Drop for Session {
    fn drop(&mut self) {
        let api = &self.library.api;
        // SAFETY: each was made for this session, or is null, which is ignored; kernels are released before their
        // operators.
        unsafe {
            (api.release_session)(self.session);
            (api.release_memory)(self.memory);
            (api.release_domain)(self.domain);
        }
    }
}

impl Session {
    pub fn create(library: &'static Library, model: &ModelData, options: &Options) -> Outcome<Self> {
        let api = &library.api;
        let shared = Shared::new(library, options.threads);
        let mut session = Session {
            library,
            session: null_mut(),
            domain: null_mut(),
            memory: null_mut(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            _operators: Operator::all(&shared),
            shared,
            running: AtomicBool::new(false),
            encodings: Mutex::default(),
        };
        // SAFETY: output pointers point to locals; operators live as long as the session.
        session.domain = library.make(|out| unsafe { (api.create_domain)(c"kvtide".as_ptr(), out) })?;
        for operator in &session._operators {
            // SAFETY: as above.
            library.check(unsafe { (api.add_to_domain)(session.domain, std::ptr::from_ref(operator).cast()) })?;
        }
        // SAFETY: as above.
        let made = library.make(|out| unsafe { (api.create_session_options)(out) })?;
        let created = session.configure(made, options).and_then(|()| library.with_domain(|| session.load(made, model)));
        // SAFETY: it was made above, and the session has copied what it needs.
        unsafe { (api.release_session_options)(made) };
        // If a kernel failed while it was made, its error says more than the library's.
        created.map_err(|refusal| session.shared.end().1.unwrap_or(refusal))?;
        // SAFETY: as above.
        session.memory =
            library.make(|out| unsafe { (api.create_cpu_memory)(number::ARENA, number::DEFAULT_MEMORY, out) })?;
        session.inputs = session.ports(true)?;
        session.outputs = session.ports(false)?;
        session.check_ports(&options.purpose)?;
        Ok(session)
    }

    fn configure(&self, made: *mut SessionOptions, options: &Options) -> Outcome<()> {
        let (library, api) = (self.library, &self.library.api);
        let mut config = vec![
            (c"session.intra_op.allow_spinning", c"1"),
            (c"session.inter_op.allow_spinning", c"0"),
            (c"session.force_spinning_stop", c"1"),
        ];
        if library.has_memory {
            config.push((c"session.use_env_allocators", c"1"));
        }
        if let Some(folder) = &options.folder {
            config.push((library.folder_key()?, folder));
        }
        // SAFETY: the options were just made, and the library copies all strings.
        unsafe {
            library.check((api.add_domain)(made, self.domain))?;
            library.check((api.set_log_level)(made, number::FATAL))?;
            library.check((api.set_intra_op_threads)(made, small(options.threads)))?;
            library.check((api.set_inter_op_threads)(made, 1))?;
            // The library would keep a memory plan for each shape for ever, and shapes change with each step.
            library.check((api.disable_mem_pattern)(made))?;
            config
                .iter()
                .try_for_each(|(key, value)| library.check((api.add_config)(made, key.as_ptr(), value.as_ptr())))
        }
    }

    fn load(&mut self, options: *mut SessionOptions, model: &ModelData) -> Outcome<()> {
        let (library, api, env) = (self.library, &self.library.api, self.library.env);
        self.session = match model {
            ModelData::Path(path) => {
                let path = encoded(Path::new(path))?;
                // SAFETY: the path is terminated, and the other objects were made for this session.
                library.make(|out| unsafe { (api.create_session)(env, path.as_ptr(), options, out) })?
            }
            ModelData::Bytes(bytes) => {
                let (data, count) = (bytes.as_ptr().cast(), bytes.len());
                // SAFETY: the library reads this many bytes, and only during this call.
                library.make(|out| unsafe { (api.create_session_from_array)(env, data, count, options, out) })?
            }
        };
        Ok(())
    }

    /// Reads names and element types of inputs, or names of outputs.
    fn ports(&self, is_input: bool) -> Outcome<Vec<Port>> {
        let (library, api, session) = (self.library, &self.library.api, self.session);
        let (count, name) =
            if is_input { (api.input_count, api.input_name) } else { (api.output_count, api.output_name) };
        // SAFETY: the session lives; the allocator is the library's own, and frees the strings it returned.
        let count = library.ask(|out| unsafe { count(session, out) })?;
        // SAFETY: as above.
        let allocator = library.make(|out| unsafe { (api.default_allocator)(out) })?;
        let port = |index| {
            // SAFETY: as above.
            let text: *mut c_char = library.make(|out| unsafe { name(session, index, allocator, out) })?;
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(text) }.to_owned();
            // SAFETY: as above.
            library.check(unsafe { (api.allocator_free)(allocator, text.cast()) })?;
            let (element, dims) = if is_input { self.described(index)? } else { (0, Vec::new()) };
            Ok(Port { name, element, dims })
        };
        (0..count).map(port).collect()
    }

    /// The element type and the dimensions of an input.
    fn described(&self, index: usize) -> Outcome<(c_int, Vec<i64>)> {
        let (library, api) = (self.library, &self.library.api);
        // SAFETY: the session lives, and the type is released below.
        let kind = library.make(|out| unsafe { (api.input_type)(self.session, index, out) })?;
        let mut info = null();
        // SAFETY: as above; the tensor's type is part of it.
        let cast = library.check(unsafe { (api.tensor_type)(kind, &mut info) });
        let described = cast.and_then(|()| match info.is_null() {
            true => Ok((0, Vec::new())),
            // SAFETY: as above.
            false => library.ask(|out| unsafe { (api.element_type)(info, out) }).and_then(|element| {
                // SAFETY: as above.
                let rank = library.ask(|out| unsafe { (api.rank)(info, out) })?;
                let mut dims = vec![0; rank];
                // SAFETY: the list has one entry per dimension.
                library.check(unsafe { (api.dims)(info, dims.as_mut_ptr(), rank) })?;
                Ok((element, dims))
            }),
        });
        // SAFETY: it was made above.
        unsafe { (api.release_type)(kind) };
        described
    }

    /// Checks that the graph has an input for token ids and no unknown inputs: kvtide could not provide their values.
    fn check_ports(&self, purpose: &Purpose) -> Outcome<()> {
        let Purpose::Decoder { embedded } = purpose else { return Ok(()) };
        let is_embedded = |port: &Port| embedded.iter().any(|name| port.is(name));
        let others = self.inputs.iter().filter(|port| !is_embedded(port));
        let ids = others.clone().filter(|port| !port.is(POSITIONS) && !port.is(ROWS)).count();
        for port in others {
            let reason = if !port.is_whole() {
                "its elements are not integers"
            } else if ids > 1 && !["input_ids", POSITIONS, ROWS].iter().any(|name| port.is(name)) {
                "kvtide has no value for this input"
            } else {
                continue;
            };
            return Err(unsupported(&port.text(), "input", reason));
        }
        if ids == 0 && embedded.is_empty() {
            return Err(unsupported("input_ids", "input", "the graph has no input of token ids"));
        }
        if self.outputs.is_empty() {
            return Err(unsupported(LOGITS, "output", "the graph has no outputs"));
        }
        Ok(())
    }

    /// The encodings that it keeps.
    pub fn encodings(&self) -> MutexGuard<'_, HashMap<u32, Arc<Encoded>>> {
        self.encodings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The output with logits.
    pub fn logits(&self) -> &Port {
        self.outputs.iter().find(|port| port.is(LOGITS)).unwrap_or(&self.outputs[0])
    }

    pub fn has_rows(&self) -> bool {
        self.inputs.iter().any(|port| port.is(ROWS))
    }
}

fn unsupported(node: &str, operator: &str, reason: &str) -> Refusal {
    let message = format!("the graph is not recognised at {node} ({operator}): {reason}");
    Refusal { code: Code::UnsupportedGraph, message, details: details![node: node, operator: operator, reason: reason] }
}

pub(super) fn failed(reason: String) -> Refusal {
    let message = format!("onnxruntime failed: {reason}");
    Refusal { code: Code::RuntimeFailed, message, details: details![reason: reason] }
}

impl Port {
    /// True for integers.
    pub fn is_whole(&self) -> bool {
        [number::INT32, number::INT64].contains(&self.element)
    }

    pub fn is(&self, name: &str) -> bool {
        self.name.as_bytes() == name.as_bytes()
    }

    pub fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}
