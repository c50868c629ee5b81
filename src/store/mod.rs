//! What outlives the process: caches and sequences in files, or as bytes.

mod load;
mod save;
mod tensors;
mod watch;
