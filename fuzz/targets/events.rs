//! Batches of events that a worker publishes, applied to the index of a router.
#![no_main]

use kvtide_router::{WorkerFeed, WorkerIndex, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(batch) = decode(data) else { return };
    let again = decode(&encode(&batch)).expect("a batch that was encoded");
    // A time may be NaN, which is equal to nothing.
    assert_eq!((&again.events, again.rank), (&batch.events, batch.rank));
    assert!(again.time.to_bits() == batch.time.to_bits());
    let mut index = WorkerIndex::new();
    let workers = [index.add_worker().expect("there is room"), index.add_worker().expect("there is room")];
    for worker in workers {
        let mut feed = WorkerFeed::new(worker);
        let _ = feed.apply(&mut index, &batch);
        index.check_invariants();
        let _ = feed.apply(&mut index, &again);
        index.check_invariants();
    }
    for worker in workers {
        index.remove_worker(worker).expect("the worker is there");
        index.check_invariants();
    }
});
