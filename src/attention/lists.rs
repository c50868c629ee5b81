//! The arrays that a call of attention seldom has: they cross together, as one JavaScript array, or not at all.
//!
//! ```text
//! kvOffsets  sinkLogits  starts  positions  qOffsets  tree  treeOffsets  sequences  blockTables  kvLengths  mask
//! ```
#![expect(unsafe_code, reason = "the conversion of arguments is an unsafe trait function of napi")]

use std::borrow::Cow;
use std::ptr;

use napi::bindgen_prelude::{FromNapiValue, TypeName, ValidateNapiValue};
use napi::{Result, ValueType, check_status, sys};

use crate::border::array::ArrayArg;
use crate::border::number::whole;
use crate::border::refusal::Outcome;
use crate::border::tensor_arg::TensorArg;

/// Typed arrays in it; the mask comes behind them.
const LISTS: usize = 10;

/// The array of arrays, if the argument is one.
pub struct ListsArg(Option<Box<Entries>>);

/// The arrays, as they came.
struct Entries {
    lists: [Option<ArrayArg>; LISTS],
    mask: Option<TensorArg>,
}

impl TypeName for ListsArg {
    fn type_name() -> &'static str {
        "array of arrays"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ValidateNapiValue for ListsArg {}

impl FromNapiValue for ListsArg {
    unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> Result<Self> {
        let mut is_array = false;
        // SAFETY: environment and value are those of the call whose arguments are converted.
        check_status!(unsafe { sys::napi_is_array(env, value, &mut is_array) })?;
        if !is_array {
            return Ok(ListsArg(None));
        }
        let mut found = Box::new(Entries { lists: [None; LISTS], mask: None });
        let entry = |index: usize| {
            let mut entry = ptr::null_mut();
            // SAFETY: as above; the array was made by our own code, and reading it runs no getter.
            check_status!(unsafe { sys::napi_get_element(env, value, index as u32, &mut entry) })?;
            Ok::<_, napi::Error>(entry)
        };
        for (index, list) in found.lists.iter_mut().enumerate() {
            // SAFETY: the entry was just read in this environment.
            *list = Some(unsafe { ArrayArg::from_napi_value(env, entry(index)?)? });
        }
        // SAFETY: as above.
        found.mask = Some(unsafe { TensorArg::from_napi_value(env, entry(LISTS)?)? });
        Ok(ListsArg(Some(found)))
    }
}

/// The lists of a call: in JavaScript's memory for its length, or copied.
#[derive(Clone, Default)]
pub(crate) struct Lists<'a> {
    pub kv_offsets: Option<Cow<'a, [i32]>>,
    pub sink_logits: Option<Cow<'a, [f32]>>,
    pub starts: Option<Cow<'a, [i32]>>,
    pub positions: Option<Cow<'a, [i32]>>,
    pub query_offsets: Option<Cow<'a, [i32]>>,
    pub tree: Option<Cow<'a, [i32]>>,
    pub tree_offsets: Option<Cow<'a, [i32]>>,
}

/// The pages that a call reads.
pub(crate) enum PagesArg<'a> {
    /// Those of sequences, by their ids.
    Sequences(Vec<u64>),
    /// Those in the rows of a block table, with lengths in tokens.
    Tables(&'a [i32], &'a [i32]),
}

impl ListsArg {
    /// The mask, if there is one.
    pub(crate) fn mask(&self) -> Option<&TensorArg> {
        self.0.as_ref()?.mask.as_ref().filter(|mask| mask.is_given())
    }

    /// The pages that are read.
    pub(crate) fn pages<'a>(&self) -> Outcome<PagesArg<'a>> {
        let missing = || kvtide_core::Error::argument("kv", "nothing", "sequences, or blockTables and kvLengths");
        let entries = self.0.as_ref().ok_or_else(missing)?;
        let [.., sequences, tables, lengths] = entries.lists;
        if let Some(ids) = sequences.map(|list| list.elements::<f64>("sequences")).transpose()?.flatten() {
            return Ok(PagesArg::Sequences(ids.iter().map(|&id| whole("sequences", id)).collect::<Outcome<_>>()?));
        }
        let ints = |argument, list: Option<ArrayArg>| {
            Ok::<_, crate::border::refusal::Refusal>(
                list.ok_or_else(missing)?.elements::<i32>(argument)?.ok_or_else(missing)?,
            )
        };
        Ok(PagesArg::Tables(ints("blockTables", tables)?, ints("lengths", lengths)?))
    }

    /// The lists, where they lie.
    pub(crate) fn lists<'a>(&self) -> Outcome<Lists<'a>> {
        let Some(entries) = &self.0 else { return Ok(Lists::default()) };
        let [kv_offsets, sink_logits, starts, positions, query_offsets, tree, tree_offsets, ..] = entries.lists;
        fn list<'a, T: bytemuck::AnyBitPattern>(
            argument: &'static str,
            list: Option<ArrayArg>,
        ) -> Outcome<Option<Cow<'a, [T]>>> {
            let Some(list) = list else { return Ok(None) };
            Ok(list.elements(argument)?.map(Cow::Borrowed))
        }
        Ok(Lists {
            kv_offsets: list("kvOffsets", kv_offsets)?,
            sink_logits: list("sinkLogits", sink_logits)?,
            starts: list("starts", starts)?,
            positions: list("positions", positions)?,
            query_offsets: list("qOffsets", query_offsets)?,
            tree: list("tree", tree)?,
            tree_offsets: list("treeOffsets", tree_offsets)?,
        })
    }
}

impl Lists<'_> {
    /// A copy of them all.
    pub fn to_owned(&self) -> Lists<'static> {
        fn copy<T: Clone>(list: &Option<Cow<'_, [T]>>) -> Option<Cow<'static, [T]>> {
            list.as_ref().map(|list| Cow::Owned(list.to_vec()))
        }
        Lists {
            kv_offsets: copy(&self.kv_offsets),
            sink_logits: copy(&self.sink_logits),
            starts: copy(&self.starts),
            positions: copy(&self.positions),
            query_offsets: copy(&self.query_offsets),
            tree: copy(&self.tree),
            tree_offsets: copy(&self.tree_offsets),
        }
    }

    /// The same lists, for a call.
    pub fn borrowed(&self) -> Lists<'_> {
        fn borrow<'a, T: Clone>(list: &'a Option<Cow<'_, [T]>>) -> Option<Cow<'a, [T]>> {
            list.as_deref().map(Cow::Borrowed)
        }
        Lists {
            kv_offsets: borrow(&self.kv_offsets),
            sink_logits: borrow(&self.sink_logits),
            starts: borrow(&self.starts),
            positions: borrow(&self.positions),
            query_offsets: borrow(&self.query_offsets),
            tree: borrow(&self.tree),
            tree_offsets: borrow(&self.tree_offsets),
        }
    }

    /// True when one of them lies in this memory.
    pub fn overlap(&self, memory: *const u8, bytes: usize) -> bool {
        let offsets = [&self.kv_offsets, &self.query_offsets, &self.tree_offsets];
        let ints = offsets.into_iter().chain([&self.starts, &self.positions, &self.tree]);
        let ints = ints.flatten().map(|list| bytemuck::cast_slice(list));
        let mut lists = ints.chain(self.sink_logits.iter().map(|list| bytemuck::cast_slice(list)));
        lists.any(|list: &[u8]| {
            let start = list.as_ptr().addr();
            memory.addr() < start + list.len() && memory.addr() + bytes > start
        })
    }
}
