//! Pages of a cache with a window: what queries over them see unless they say otherwise, and that it is still there.
//!
//! ```text
//! positions   [ sinks ) gone [ kept ............ )
//!                             a query sees back as far as this
//! ```
//!
//! A cache gives blocks back that left the window of its last token. A query that would see some of them is refused: what it
//! would see otherwise depends on the size of blocks. O(queries) where blocks are gone, else O(sequences).

use super::asked::Asked;
use super::kv_rows::KvRows;
use super::options::AttendOptions;
use crate::error::{Error, Result};

/// The options with the window and the sinks of the cache that is read, where they name no window.
pub(super) fn in_window<'a>(kv: &KvRows<'_>, options: &AttendOptions<'a>) -> AttendOptions<'a> {
    match kv {
        KvRows::Pages(pages) if options.window.is_none() => match pages.window() {
            Some(window) => AttendOptions { window: Some(window.tokens()), sinks: window.sinks(), ..options.clone() },
            None => options.clone(),
        },
        _ => options.clone(),
    }
}

/// Refuses queries that would see tokens which the cache has let go of.
pub(super) fn check_kept(kv: &KvRows<'_>, asked: &Asked<'_>) -> Result<()> {
    let KvRows::Pages(pages) = kv else { return Ok(()) };
    for (index, of) in asked.sequences.iter().enumerate() {
        let gap = pages.gap(index);
        if gap.is_empty() {
            continue;
        }
        let (first, behind) = (i64::from(gap.start), i64::from(gap.end));
        for query in 0..of.queries {
            let position = asked.position(index, query);
            if asked.causal && position < first {
                continue;
            }
            let seen = asked.window.map_or(0, |window| position + 1 - window).max(of.start);
            if seen < behind {
                let most = (position + 1 - behind).max(0);
                let expected = format!(
                    "at most {most} for the query at {position} of sequence {index}: tokens before {behind} have left the cache"
                );
                return Err(match asked.window {
                    Some(window) => Error::argument("window", window as u32, expected),
                    None => Error::argument("window", "none", expected),
                });
            }
            if asked.sinks > first {
                let expected = format!("at most {first}, the first tokens that the cache has kept");
                return Err(Error::argument("sinks", asked.sinks as u32, expected));
            }
        }
    }
    Ok(())
}
