//! The Node-API addon of kvtide: glue alone.
//!
//! One file per exported class. Arguments were checked by the TypeScript layer; what arrives here is checked again where a
//! wrong value could reach memory. Every call runs inside [`guard`], so that a refusal becomes a coded error and a panic
//! never leaves the addon.
#![deny(unsafe_code)]

mod attention;
mod border;
mod contiguous;
mod sequences;
