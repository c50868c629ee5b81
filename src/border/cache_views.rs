//! What caches show, in numbers.
//!
//! An object with a finalizer costs V8 microseconds. A decode loop would pay for one at each append, and seldom look at it. So a call
//! answers with the numbers of what it shows, and JavaScript makes a view of them when someone looks. Only a buffer is an object: the
//! cache hands it over once, and again when it has taken another.
//!
//! ```text
//! meta[2 * META ..]   kind   run 0: start  len   run 1: start  len   end   sweep (-1: none)   head
//!                     window (0: none)  sinks  whether the last tokens are a tree
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use kvtide_core::paged::Window;
use kvtide_core::{Run, Stamp};
use kvtide_tensor::{BufferHandle, CacheWindow, Error, Shown, ShownNumbers, View};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::children::Children;
use crate::border::handle::guard;
use crate::border::host_array::META;
use crate::border::number::{count, whole};
use crate::border::refusal::{Outcome, Refusal};
use crate::border::tensor::NativeView;

/// JavaScript has the buffer already.
const SAME: f64 = 0.0;
/// The cache's present buffer, to keep.
const KEEP: f64 = 1.0;
/// A buffer for this result alone.
const ONCE: f64 = 2.0;
/// Nothing is shown.
const NOTHING: f64 = 3.0;

/// What JavaScript has of one cache: the buffer that it keeps, and the objects that were made from it.
#[derive(Default)]
pub(crate) struct CacheViews {
    /// The id of the buffer that JavaScript keeps.
    kept: Option<u64>,
    pub children: Children,
}

impl CacheViews {
    /// As [`CacheViews::show`]; nothing may be shown.
    pub fn show_optional(&mut self, shown: Option<&Shown>, meta: &mut [f64]) -> Outcome<Option<NativeBuffer>> {
        match shown {
            Some(shown) => self.show(shown, meta),
            None => {
                if let Some(kind) = meta.get_mut(2 * META) {
                    *kind = NOTHING;
                }
                Ok(None)
            }
        }
    }

    /// Writes the numbers of what is shown to `meta`. Answers the buffer when JavaScript does not have it.
    pub fn show(&mut self, shown: &Shown, meta: &mut [f64]) -> Outcome<Option<NativeBuffer>> {
        let missing = || kvtide_core::Error::argument("meta", "too few numbers", "room for what is shown");
        let ShownNumbers { runs: [first, second], end, stamp, window } = shown.numbers();
        let (sweep, head) = stamp.map_or((-1.0, 0), |stamp| (stamp.to_raw().0 as f64, stamp.to_raw().1));
        let same = self.kept == Some(shown.buffer_id());
        let kind = match stamp {
            _ if same => SAME,
            Some(_) => KEEP,
            None => ONCE,
        };
        let out = meta.get_mut(2 * META..=2 * META + NUMBERS).ok_or_else(missing)?;
        let numbers = [first.start, first.len, second.start, second.len].map(f64::from);
        out[0] = kind;
        out[1..5].copy_from_slice(&numbers);
        out[5..8].copy_from_slice(&[end as f64, sweep, head.into()]);
        let none = [0.0; 3];
        out[8..].copy_from_slice(&window.map_or(none, |CacheWindow { window, is_tree }| {
            [window.tokens().into(), window.sinks().into(), f64::from(u8::from(is_tree))]
        }));
        if same {
            return Ok(None);
        }
        if kind == KEEP {
            self.kept = Some(shown.buffer_id());
        }
        let children = if shown.stands_alone() { Children::default() } else { self.children.clone() };
        Ok(Some(NativeBuffer { buffer: children.adopt(shown.buffer()), children }))
    }
}

/// The memory of views that are still numbers.
#[napi]
pub struct NativeBuffer {
    buffer: Rc<RefCell<Option<BufferHandle>>>,
    children: Children,
}

/// Numbers of what is shown, of one buffer.
pub(crate) const NUMBERS: usize = 10;

impl NativeBuffer {
    /// The memory; refused when its cache was disposed of.
    pub(crate) fn handle(&self) -> Outcome<BufferHandle> {
        Ok(self.buffer.borrow().clone().ok_or(Error::Disposed { object: "cache of this view" })?)
    }
}

/// The view that these numbers of a call on a cache mean, one part of its buffer.
pub(crate) fn view_of(buffer: &BufferHandle, part: f64, numbers: &[f64]) -> Outcome<View> {
    let &[start, len, next_start, next_len, end, sweep, head, window, sinks, tree] = numbers else {
        return Err(kvtide_core::Error::argument("numbers", numbers.len(), format!("{NUMBERS} numbers")).into());
    };
    let run = |start, len| Ok::<_, Refusal>(Run::new(count("start", start)?, count("len", len)?));
    let stamp = if sweep < 0.0 { None } else { Some(Stamp::from_raw(whole("sweep", sweep)?, count("head", head)?)) };
    let window = match count("window", window)? {
        0 => None,
        window => Some(CacheWindow { window: Window::new(window, count("sinks", sinks)?)?, is_tree: tree != 0.0 }),
    };
    let runs = [run(start, len)?, run(next_start, next_len)?];
    let numbers = ShownNumbers { runs, end: whole("end", end)?, stamp, window };
    Ok(buffer.shown(numbers)?.view(count("part", part)? as usize))
}

#[napi]
impl NativeBuffer {
    /// The view that these numbers of a call on the cache mean, one part of it.
    #[napi]
    pub fn view(&self, env: &Env, part: f64, numbers: &[f64]) -> Result<NativeView> {
        guard(env, || Ok(NativeView::of(view_of(&self.handle()?, part, numbers)?, &self.children)))
    }

    /// Lets go of the memory, of which views keep what they show.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            self.buffer.replace(None);
            Ok(())
        })
    }
}
