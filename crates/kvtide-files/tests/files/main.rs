//! Files of caches and sequences: a load gives what was saved, whatever happens to the file in between.

mod caches;
mod counted;
mod crash;
mod damage;
mod disk;
mod engine;
mod forged;
mod identity;
mod layers;
mod power;
mod regular;
mod sequences;
mod world;
