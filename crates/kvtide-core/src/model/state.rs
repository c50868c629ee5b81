//! States: tensors of a fixed size that a layer keeps for a sequence, in place of keys and values or beside them.
//!
//! ```text
//! one device    | layer 0 conv | layer 0 ssm | layer 2 conv | layer 2 ssm |      each at a multiple of 64 bytes
//! two devices   | layer 0 conv | layer 0 ssm |  layer 2 conv | layer 2 ssm |     a slot for each device, in order
//!                 slot of device 0              slot of device 1
//! ```
//!
//! The states of one sequence on one device form a *slot*, which a cache shares, copies, saves and moves as a whole.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::layer::{LayerDescription, LayerKind};
use crate::count::COUNT_MAX;
use crate::error::{Error, Result};

/// The first byte of each state in its slot is a multiple of this number.
pub const STATE_ALIGNMENT: u64 = 64;

/// The most bytes of all states of a sequence: a slot of this size is a page of any number of tokens.
pub const STATE_BYTES_MAX: u64 = 4 * (COUNT_MAX as u64 + 1 - 16);

/// The most bytes of a state's name.
const NAME_BYTES_MAX: usize = 255;

/// The element type of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateDType {
    /// 32-bit floating point.
    F32,
    /// IEEE half precision.
    F16,
    /// 16 bits with the exponent range of `F32`.
    BF16,
}

impl StateDType {
    /// All element types.
    pub const ALL: [Self; 3] = [StateDType::F32, StateDType::F16, StateDType::BF16];

    /// The name: `f32`, `f16` or `bf16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StateDType::F32 => "f32",
            StateDType::F16 => "f16",
            StateDType::BF16 => "bf16",
        }
    }

    /// The bytes of an element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            StateDType::F32 => 4,
            StateDType::F16 | StateDType::BF16 => 2,
        }
    }
}

impl fmt::Display for StateDType {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

impl FromStr for StateDType {
    /// The names that there are.
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = StateDType::ALL.into_iter().find(|of| of.name() == name);
        found.ok_or_else(|| StateDType::ALL.map(StateDType::name).join(", "))
    }
}

/// A tensor that a layer keeps for a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateTensor {
    /// The layer.
    pub layer: u32,
    /// The name, unique in the layer: `conv`, `ssm`, `recurrent`.
    pub name: String,
    /// The dimensions, without that of sequences.
    pub shape: Vec<u32>,
    /// The element type.
    pub dtype: StateDType,
}

impl StateTensor {
    /// The bytes of a checked tensor.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.bytes(), |bytes, &size| bytes.saturating_mul(size.into()))
    }
}

/// The bytes of the states of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// The first byte of each state, in the order of [`ModelDescription::states`](super::ModelDescription::states).
    pub offsets: Vec<u64>,
    /// The number of bytes, a multiple of [`STATE_ALIGNMENT`]; 0 without states.
    pub bytes: u64,
    /// The bytes of each group of states, in the order of the groups: one slot for each device.
    pub slots: Vec<Range<u64>>,
}

impl StateLayout {
    /// Returns the layout of checked states, whose groups are on the devices `order`. O(states · devices).
    pub(super) fn of(states: &[StateTensor], order: &[u32], device: impl Fn(u32) -> u32) -> Self {
        let mut layout = StateLayout { offsets: vec![0; states.len()], ..StateLayout::default() };
        for &slot in order {
            let start = layout.bytes;
            for (state, offset) in states.iter().zip(&mut layout.offsets).filter(|(of, _)| device(of.layer) == slot) {
                *offset = layout.bytes;
                layout.bytes += state.bytes().next_multiple_of(STATE_ALIGNMENT);
            }
            layout.slots.push(start..layout.bytes);
        }
        layout
    }
}

/// Returns an error if a state is impossible, or if a layer of kind [`LayerKind::State`] has none. O(states + layers).
pub(super) fn check_states(layers: &[LayerDescription], states: &[StateTensor]) -> Result<()> {
    let (mut names, mut total, mut kept) = (HashSet::new(), 0u64, vec![0u32; layers.len()]);
    for (index, state) in states.iter().enumerate() {
        let layer = layers.get(state.layer as usize).ok_or_else(|| {
            Error::model(format!("states[{index}].layer"), state.layer, format!("below {}", layers.len()))
        })?;
        // The path of the tensor as it is written by hand, inside its layer.
        let place = &mut kept[state.layer as usize];
        let of = |field: &str| format!("layers[{}].tensors[{place}]{field}", state.layer);
        match layer.kind {
            LayerKind::Empty => return Err(Error::model(of(""), "a state", "none in a layer that keeps nothing")),
            LayerKind::SharedWith(source) => {
                let expected = format!("none in a layer that shares the keys and values of layer {source}");
                return Err(Error::model(of(""), "a state", expected));
            }
            LayerKind::Full | LayerKind::Sliding { .. } | LayerKind::State => {}
        }
        if !(1..=NAME_BYTES_MAX).contains(&state.name.len()) {
            let value = format!("text of {} bytes", state.name.len());
            return Err(Error::model(of(".name"), value, format!("1 to {NAME_BYTES_MAX} bytes")));
        }
        if !names.insert((state.layer, &*state.name)) {
            return Err(Error::model(of(".name"), &*state.name, "another name than those of the layer's other states"));
        }
        check_shape(state, of)?;
        total = total.saturating_add(state.bytes().next_multiple_of(STATE_ALIGNMENT));
        *place += 1;
    }
    let is_bare = |(layer, kept): (&LayerDescription, &u32)| layer.kind == LayerKind::State && *kept == 0;
    if let Some(layer) = layers.iter().zip(&kept).position(is_bare) {
        return Err(Error::model(
            format!("layers[{layer}].tensors.length"),
            0,
            "at least 1 in a layer that keeps a state",
        ));
    }
    match total {
        0..=STATE_BYTES_MAX => Ok(()),
        _ => Err(Error::model("states", format!("{total} bytes for a sequence"), format!("at most {STATE_BYTES_MAX}"))),
    }
}

fn check_shape(state: &StateTensor, of: impl Fn(&str) -> String) -> Result<()> {
    const DIMS_MAX: usize = 8;
    if !(1..=DIMS_MAX).contains(&state.shape.len()) {
        return Err(Error::model(of(".shape.length"), state.shape.len(), format!("1 to {DIMS_MAX} dimensions")));
    }
    if let Some((axis, &size)) = (0..).zip(&state.shape).find(|(_, size)| !(1..=COUNT_MAX).contains(*size)) {
        let axis: usize = axis;
        return Err(Error::model(of(&format!(".shape[{axis}]")), size, format!("1 to {COUNT_MAX}")));
    }
    if state.bytes() > STATE_BYTES_MAX {
        let shape: Vec<_> = state.shape.iter().map(u32::to_string).collect();
        let value = format!("[{}]", shape.join(", "));
        return Err(Error::model(of(".shape"), value, format!("at most {STATE_BYTES_MAX} bytes of {}", state.dtype)));
    }
    Ok(())
}
