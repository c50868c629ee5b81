//! A store that the caller calls: offloads and restores whose calls succeed, are late, or fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kvtide_core::model::LayerDescription;
use kvtide_tensor::{PagedKvCache, PagedPrefix, PromptOptions};
use kvtide_tiers::{
    Access, Answer, Call, CallerGate, Driver, Envelope, Fault, FaultKind, GateOptions, GuardOptions, Machine, Policy,
    Step, TierOptions, TierSet, Tiers,
};

use crate::tiers::{attach, compute, later, memory, prompt, small};
use crate::world::{Form, Random, forms, found, shown};

const OPTIONS: PromptOptions<'static> = PromptOptions { salt: &[], salt_from: 0, extra: &[] };

/// The caller's store, and how its next calls behave.
#[derive(Default)]
struct Shelf {
    entries: HashMap<String, Vec<u8>>,
    calls: usize,
    /// The number of calls that fail.
    fails: usize,
    /// True if every call is late.
    is_late: bool,
    removed: usize,
}

/// Returns a tier whose store is asked again after this back-off.
fn tier(backoff: Duration) -> TierOptions {
    let gate = GateOptions { backoff_min: backoff, backoff_max: backoff, ..GateOptions::default() };
    let gate = Arc::new(CallerGate::new(GuardOptions { gate, ..GuardOptions::default() }, true).unwrap());
    let envelope = Envelope::new(Some([5; 32]), Some(2)).unwrap();
    TierOptions { name: "store", access: Access::Caller(gate), envelope, policy: Policy::Commit }
}

const NEVER: Duration = Duration::from_secs(3600);

/// Drives a machine until it ends, or needs its cache.
fn drive<M: Machine>(driver: &mut Driver<M>, shelf: &mut Shelf) -> bool {
    let (mut step, mut last) = (driver.advance(), None);
    loop {
        step = match step {
            Step::Done => return false,
            Step::Cache => return true,
            Step::Work => {
                driver.machine.work();
                driver.advance()
            }
            Step::Pause(pause) => {
                std::thread::sleep(pause);
                driver.advance()
            }
            Step::Call { call, permit } => {
                shelf.calls += 1;
                last = call.or(last);
                if shelf.is_late {
                    step = driver.miss();
                    // A later answer is ignored.
                    assert!(driver.answer(permit, Answer::Done).is_none());
                    continue;
                }
                if shelf.fails > 0 {
                    shelf.fails -= 1;
                    step = driver.failed(permit, Fault::new(FaultKind::Unreachable, "told to")).unwrap();
                    continue;
                }
                let entries = &mut shelf.entries;
                match last.as_ref().unwrap() {
                    Call::Has(keys) => {
                        let exist: Vec<bool> = keys.iter().map(|key| entries.contains_key(key)).collect();
                        driver.answer(permit, Answer::Has(&exist))
                    }
                    Call::Get { keys, bytes_max } => {
                        let value =
                            |key| entries.get(key).map(|value| &value[..]).filter(|value| value.len() <= *bytes_max);
                        driver.answer(permit, Answer::Values(&keys.iter().map(value).collect::<Vec<_>>()))
                    }
                    Call::Put(new) => {
                        entries.extend(new.iter().cloned());
                        driver.answer(permit, Answer::Stored(new.len()))
                    }
                    Call::Remove(keys) => {
                        shelf.removed += keys.len();
                        keys.iter().for_each(|key| _ = entries.remove(key));
                        driver.answer(permit, Answer::Done)
                    }
                }
                .unwrap()
            }
        };
    }
}

fn restore(tiers: &Tiers, cache: &mut PagedKvCache, tokens: &[u32], shelf: &mut Shelf) -> (Vec<u32>, PagedPrefix) {
    let machine = tiers.restore(cache, tokens, OPTIONS, TierSet::ALL, later()).unwrap();
    let mut driver = Driver::new(machine, tiers.caller_gate());
    while drive(&mut driver, shelf) {
        driver.machine.begin(cache).unwrap();
    }
    let arrived = driver.machine.end(cache).unwrap();
    (arrived, driver.machine.find(cache, false).unwrap())
}

fn write(tiers: &Tiers, shelf: &mut Shelf) {
    assert!(!drive(&mut Driver::new(tiers.writer(), tiers.caller_gate()), shelf));
    assert!(!tiers.has_queued_for_caller());
    assert!(tiers.flush(later()), "nothing is queued any more");
}

fn form() -> Form {
    forms().remove(0).1
}

#[test]
fn prompts_are_restored_as_they_were_through_any_number_of_failures() {
    for (name, form) in forms() {
        for with_memory in [false, true] {
            let (mut random, mut shelf) = (Random(3), Shelf::default());
            let top = if with_memory { memory(3000) } else { None };
            let mut cache = small(&form, 24).cache();
            let tiers = attach(&mut cache, top, vec![tier(NEVER)]);
            let mut all = small(&form, 4096).cache();
            let mut came = 0;
            for turn in 0..30 {
                let tokens = prompt(&mut random);
                shelf.fails = random.below(3) as usize;
                let (arrived, prefix) = restore(&tiers, &mut cache, &tokens, &mut shelf);
                came += arrived.iter().sum::<u32>();
                assert_eq!(prefix.length(), found(&mut all, &tokens, b""), "{name}, turn {turn}");
                drop(prefix);
                let (sequence, _) = compute(&mut cache, &tokens);
                let (whole, _) = compute(&mut all, &tokens);
                assert_eq!(shown(&mut cache, sequence), shown(&mut all, whole), "{name}, turn {turn}");
                cache.drop_sequence(sequence).unwrap();
                cache.check_invariants().unwrap();
                shelf.fails = random.below(3) as usize;
                write(&tiers, &mut shelf);
            }
            assert!(came > 0, "{name}: nothing was restored");
        }
    }
}

#[test]
fn damaged_entries_are_misses_and_are_removed() {
    let (mut shelf, tokens) = (Shelf::default(), (0..33).collect::<Vec<u32>>());
    let mut cache = form().cache();
    let tiers = attach(&mut cache, None, vec![tier(NEVER)]);
    compute(&mut cache, &tokens);
    write(&tiers, &mut shelf);
    assert_eq!(shelf.entries.len(), 8);
    shelf.entries.values_mut().for_each(|value| value[7] ^= 1);
    let mut other = form().cache();
    let below = attach(&mut other, None, vec![tier(NEVER)]);
    let (arrived, prefix) = restore(&below, &mut other, &tokens, &mut shelf);
    assert_eq!((arrived, prefix.length(), shelf.removed, below.stats()[0].1.damaged), (vec![0, 0], 0, 8, 8));
}

#[test]
fn a_late_or_dead_store_is_a_miss_and_takes_nothing_until_it_is_back() {
    let (mut shelf, tokens) = (Shelf::default(), (0..33).collect::<Vec<u32>>());
    let mut cache = form().cache();
    let tiers = attach(&mut cache, None, vec![tier(NEVER)]);
    compute(&mut cache, &tokens);
    write(&tiers, &mut shelf);
    for backoff in [NEVER, Duration::from_millis(1)] {
        let mut other = form().cache();
        let below = attach(&mut other, None, vec![tier(backoff)]);
        shelf.is_late = true;
        assert_eq!(restore(&below, &mut other, &tokens, &mut shelf).0, [0, 0]);
        (shelf.is_late, shelf.fails) = (false, usize::MAX);
        // After three failed attempts of one call, the store is unreachable.
        let calls = shelf.calls;
        assert_eq!(restore(&below, &mut other, &tokens, &mut shelf).0, [0, 0]);
        assert_eq!(shelf.calls, calls + 3);
        if backoff == NEVER {
            assert_eq!(restore(&below, &mut other, &tokens, &mut shelf).0, [0, 0]);
            assert_eq!(shelf.calls, calls + 3, "it is not asked");
            compute(&mut other, &[6; 9]);
            assert!(!below.has_queued_for_caller(), "nothing is copied for it");
        } else {
            shelf.fails = 2;
            assert!(!drive(&mut Driver::new(below.prober(), below.caller_gate()), &mut shelf));
            assert_eq!(restore(&below, &mut other, &tokens, &mut shelf).0, [0, 8]);
            compute(&mut other, &[7; 9]);
            assert!(below.has_queued_for_caller());
        }
    }
}

/// Threads copy the first half of a prompt from memory while the caller answers for the rest: the restore ends when both
/// have arrived.
#[test]
fn blocks_in_memory_arrive_as_well_as_those_of_the_callers_store() {
    const HALF: u32 = 64;
    let layers = vec![LayerDescription::full(2, 64); 2];
    let form = Form { layers, block_size: 16, blocks: 2 * HALF, ..form() };
    let tokens: Vec<u32> = (0..2 * HALF * 16 + 1).collect();
    let first = &tokens[..(HALF * 16) as usize];
    let mut shelf = Shelf::default();
    let mut worker = Form { blocks: 2 * HALF + 1, ..form.clone() }.cache();
    let tiers = attach(&mut worker, None, vec![tier(NEVER)]);
    compute(&mut worker, &tokens);
    write(&tiers, &mut shelf);
    for round in 0..30 {
        let mut cache = form.cache();
        let below = attach(&mut cache, memory(u64::MAX), vec![tier(NEVER)]);
        let (sequence, _) = compute(&mut cache, first);
        cache.drop_sequence(sequence).unwrap();
        // Evicts all blocks to memory.
        let other = cache.create_sequence().unwrap();
        cache.ensure_capacity(other, 2 * HALF * 16).unwrap();
        cache.drop_sequence(other).unwrap();
        let (arrived, prefix) = restore(&below, &mut cache, &tokens, &mut shelf);
        assert_eq!((arrived, prefix.length()), (vec![HALF, HALF], 2 * HALF * 16), "round {round}");
    }
}

#[test]
fn blocks_that_are_forgotten_while_the_store_is_asked_are_not_written() {
    let mut cache = form().cache();
    let tiers = attach(&mut cache, None, vec![tier(NEVER)]);
    compute(&mut cache, &(0..33).collect::<Vec<u32>>());
    let mut writer = Driver::new(tiers.writer(), tiers.caller_gate());
    let Step::Call { call: Some(Call::Has(keys)), permit } = writer.advance() else { panic!("it asks first") };
    cache.forget_prefixes().unwrap();
    let step = writer.answer(permit, Answer::Has(&vec![false; keys.len()])).unwrap();
    assert!(matches!(step, Step::Work));
    writer.machine.work();
    assert!(matches!(writer.advance(), Step::Done));
    assert!(tiers.flush(later()));
}
