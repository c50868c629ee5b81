//! Slots of quantised pages made zero, to the bit, the others left where they are.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::kernel::{Grid, ZERO_SLOTS};
use crate::quantise::{Args, QuantisedPages, check_page};
use crate::stream::Stream;

/// Neighbouring slots of a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Hole {
    /// The first byte of the page.
    pub page: u64,
    /// The first slot.
    pub start: u32,
    /// The one behind the last.
    pub end: u32,
}

/// Zeroes slots of pages; those of one page are neighbours in the list. Codes of a head lie without gaps. The rows of the call
/// are not looked at.
pub fn zero_slots(stream: &Stream, of: &QuantisedPages<'_>, holes: &[Hole]) -> Result<()> {
    const THREADS: usize = 64;
    of.memory.check_writable();
    holes.iter().for_each(|hole| check_page(of, hole.page, hole.end.max(hole.start)));
    for part in of.parts.iter().filter(|part| part.dim > 0) {
        assert_eq!(part.codes.row * of.slots, part.codes.head, "codes without gaps");
    }
    let parts = of.parts.map(|part| part.passed(of.slots, 1));
    let placed: Vec<Hole> = holes.iter().map(|hole| Hole { page: of.memory.address() + hole.page, ..*hole }).collect();
    let mut rest = &placed[..];
    while !rest.is_empty() {
        // As many whole pages as a grid has room for.
        let (mut end, most) = (0, Grid::INNER_MAX as usize);
        for page in rest.chunk_by(|one, other| one.page == other.page) {
            assert!(page.len() <= most, "a page with so many holes");
            if end + page.len() > most {
                break;
            }
            end += page.len();
        }
        let (holes, behind) = rest.split_at(end);
        let listed = stream.list(holes)?;
        let args = Args { parts, heads: of.heads as u32, count: holes.len() as u32, pages: listed.list };
        stream.launch(ZERO_SLOTS, Grid::new([2 * of.heads, holes.len(), 1], THREADS), &args)?;
        rest = behind;
    }
    Ok(())
}
