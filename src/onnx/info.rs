//! Reads the attributes of a node for which the library makes a kernel, or of a node between two subgraphs.
#![expect(unsafe_code, reason = "attributes are read from a C library")]

use std::ffi::CStr;
use std::ptr::null_mut;

use super::api::KernelInfo;
use super::call::{Input, refused};
use super::library::Library;
use super::tensor::{dims, memory};
use crate::border::refusal::Outcome;

/// The attributes of a node. A missing one is `None`.
pub(super) trait Attributes {
    fn int(&self, name: &CStr) -> Option<i64>;
    fn float(&self, name: &CStr) -> Option<f32>;
    fn floats(&self, name: &CStr) -> Outcome<Option<Vec<f32>>>;

    /// A number that a node of this operator has to have.
    fn whole(&self, operator: &str, name: &CStr) -> Outcome<u32> {
        let found = self.int(name);
        let text = found.map_or("missing".into(), |value| value.to_string());
        let reason = || format!("{} is {text}, expected a whole number of at least 0", name.to_string_lossy());
        found.and_then(|value| u32::try_from(value).ok()).ok_or_else(|| refused(operator, reason()))
    }

    /// An attribute of 1 or 0; false if it is missing.
    fn is_set(&self, name: &CStr) -> bool {
        self.int(name) == Some(1)
    }
}

/// The attributes of a node of a session.
pub(super) struct Info {
    library: &'static Library,
    info: *const KernelInfo,
}

impl Info {
    /// # Safety
    ///
    /// `info` lives as long as the result.
    pub unsafe fn of(library: &'static Library, info: *const KernelInfo) -> Self {
        Info { library, info }
    }
}

impl Info {
    /// A weight, which lives as long as the session. `None` if the node lacks this input, or if it is computed.
    pub fn weight(&self, index: usize, element_bytes: usize) -> Outcome<Option<Input<'_>>> {
        let (api, info) = (&self.library.api, self.info);
        let (mut is_constant, mut value) = (0, std::ptr::null());
        // SAFETY: the info lives, and the output pointers point to locals.
        self.library.check(unsafe { (api.constant_input)(info, index, &mut is_constant, &mut value) })?;
        if is_constant == 0 || value.is_null() {
            return Ok(None);
        }
        let dims = dims(self.library, value)?;
        let count = dims.iter().map(|&dim| dim as usize).product::<usize>();
        // SAFETY: a tensor of the session with these dimensions, which nothing changes.
        let bytes = unsafe { memory(self.library, value.cast_mut(), count * element_bytes)? };
        Ok(Some(Input { dims, bytes }))
    }
}

// The library reports a missing attribute as an error.
impl Attributes for Info {
    fn int(&self, name: &CStr) -> Option<i64> {
        let (api, info) = (&self.library.api, self.info);
        // SAFETY: the info lives, and the output pointer points to a local.
        self.library.ask(|out| unsafe { (api.attribute_int)(info, name.as_ptr(), out) }).ok()
    }

    fn float(&self, name: &CStr) -> Option<f32> {
        let (api, info) = (&self.library.api, self.info);
        // SAFETY: as above.
        self.library.ask(|out| unsafe { (api.attribute_float)(info, name.as_ptr(), out) }).ok()
    }

    fn floats(&self, name: &CStr) -> Outcome<Option<Vec<f32>>> {
        let (library, api, info) = (self.library, &self.library.api, self.info);
        // SAFETY: the info lives; a null list asks for the length only.
        let asked = library.ask(|out| unsafe { (api.attribute_floats)(info, name.as_ptr(), null_mut(), out) });
        let Ok(mut count) = asked else { return Ok(None) };
        let mut list = vec![0f32; count];
        // SAFETY: the list has the length that the library reported.
        library.check(unsafe { (api.attribute_floats)(info, name.as_ptr(), list.as_mut_ptr(), &mut count) })?;
        Ok(Some(list))
    }
}

/// Attributes as lists of numbers, by their names.
pub(super) struct Listed(pub Vec<(String, Vec<f64>)>);

impl Listed {
    fn of(&self, name: &CStr) -> Option<&[f64]> {
        let found = self.0.iter().find(|(own, _)| own.as_bytes() == name.to_bytes());
        found.map(|(_, values)| values.as_slice())
    }
}

impl Attributes for Listed {
    fn int(&self, name: &CStr) -> Option<i64> {
        self.of(name)?.first().map(|&value| value as i64)
    }

    fn float(&self, name: &CStr) -> Option<f32> {
        self.of(name)?.first().map(|&value| value as f32)
    }

    fn floats(&self, name: &CStr) -> Outcome<Option<Vec<f32>>> {
        Ok(self.of(name).map(|values| values.iter().map(|&value| value as f32).collect()))
    }
}
