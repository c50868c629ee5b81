//! Moves rows of tokens inside one buffer: a compaction, or the accepted path of a draft tree.

use kvtide_core::Move;

/// Carries out `moves` in each of the stretches of `slots` rows of `row` bytes that make up `bytes`.
///
/// Moves are done in order; source and target of one may overlap.
pub(crate) fn shift(bytes: &mut [u8], slots: usize, row: usize, moves: impl Iterator<Item = Move> + Clone) {
    if slots * row == 0 {
        return;
    }
    for stretch in bytes.chunks_exact_mut(slots * row) {
        for moved in moves.clone() {
            let source = moved.source.start as usize * row..moved.source.end() as usize * row;
            stretch.copy_within(source, moved.target as usize * row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::Run;

    #[test]
    fn rows_move_in_each_stretch() {
        let mut bytes: Vec<u8> = (0..20).collect();
        let moves = [Move { source: Run::new(2, 3), target: 1 }];
        shift(&mut bytes, 5, 2, moves.into_iter());
        assert_eq!(bytes, [0, 1, 4, 5, 6, 7, 8, 9, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 18, 19]);
    }
}
