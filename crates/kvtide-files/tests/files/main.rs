//! Files of caches and sequences: a load gives what was saved, whatever happens to the file in between.

mod caches;
mod counted;
mod crash;
mod damage;
#[allow(dead_code, reason = "tiers need more of it")]
mod disk;
mod engine;
mod forged;
mod identity;
mod layers;
mod left_out;
mod power;
mod regular;
mod sequences;
mod world;
