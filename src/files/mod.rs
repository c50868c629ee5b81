//! Saves and loads caches and sequences, in files or as bytes.

mod load;
mod save;
mod tensors;
mod watch;
