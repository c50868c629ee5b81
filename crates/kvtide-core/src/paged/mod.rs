//! Blocks, tables and sequences: the planners of the paged cache.
