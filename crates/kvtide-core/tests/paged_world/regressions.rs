//! Traces that went wrong once, or would if a line were missing, pasted as a failing run prints them.

use super::calls::Call::*;
use super::calls::Shape;
use super::replay;

/// A row of a step's tables whose block was replaced between two steps: cut off, taken by another, and another one in its place.
#[test]
fn a_row_of_tables_after_a_cut() {
    replay((
        Shape { capacity: 6, block_size: 2, layers: 1, low_bit: false, window: None },
        vec![
            Create(0),
            Create(0),
            OpenStep(vec![(0, vec![1, 1, 0, 0])], true),
            WriteLayer(0),
            EndStep(true),
            Append(vec![(1, vec![0])], false),
            Truncate(0, 2),
            Ensure(1, 8),
            OpenStep(vec![(0, vec![1])], true),
            WriteLayer(0),
            EndStep(true),
        ],
    ));
}
