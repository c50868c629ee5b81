//! Single calls with states, and their errors.

use kvtide_core::Code;
use kvtide_core::model::ModelDescription;
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, PagedKvCacheOptions, PagedModelOptions, PoolRoom, Tokens};

use crate::world::{World, hybrid, mamba};

fn ids(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

/// Steps, forks, drafts and cuts of a few sequences.
fn walk(model: ModelDescription) {
    let mut world = World::new(model, 40);
    let (one, other) = (world.create(), world.create());
    world.check();
    world.step(&[(one, &ids(0, 8)), (other, &[])]).unwrap();
    world.check();
    world.step(&[(other, &ids(50, 3)), (one, &ids(8, 1))]).unwrap();
    world.check();
    let fork = world.fork(one);
    world.step(&[(fork, &ids(70, 7)), (one, &ids(9, 4))]).unwrap();
    world.check();

    assert_eq!(world.truncate(one, 10).unwrap_err().code(), Code::CannotRollBack);
    world.truncate(one, 8).unwrap();
    world.check();
    world.step(&[(one, &ids(30, 2))]).unwrap();
    world.drop(one);
    world.check();
    world.truncate(fork, 8).unwrap();
    world.truncate(other, 0).unwrap();
    world.check();

    let draft = world.cache.begin(fork, None, Default::default()).unwrap();
    world.step(&[(fork, &ids(80, 3)), (other, &ids(90, 1))]).unwrap();
    world.check();
    assert_eq!(world.cache.commit(fork, draft, Some(2)).unwrap_err().code(), Code::CannotRollBack);
    world.cache.commit(fork, draft, None).unwrap();
    world.check();
    let draft = world.cache.begin(fork, None, Default::default()).unwrap();
    let before = world.tokens[&fork].clone();
    world.step(&[(fork, &ids(80, 5))]).unwrap();
    world.cache.rollback(fork, draft);
    world.tokens.insert(fork, before);
    world.check();
}

#[test]
fn a_hybrid_model_with_every_implementation_of_the_kernels() {
    for kernels in Kernels::supported() {
        with_kernels(kernels, || walk(hybrid())).unwrap();
    }
}

#[test]
fn a_model_without_attention() {
    for kernels in Kernels::supported() {
        with_kernels(kernels, || walk(mamba())).unwrap();
    }
}

#[test]
fn states_on_two_devices() {
    let model = hybrid().split(&[0, 0, 1]).unwrap();
    let room = PoolRoom::Blocks(vec![40; model.groups().len()]);
    let devices = vec![candle_core::Device::Cpu; 2];
    let mut world = World::on(PagedModelOptions { devices, ..PagedModelOptions::new(model, room) });
    let one = world.create();
    world.step(&[(one, &ids(0, 9))]).unwrap();
    world.step(&[(one, &ids(9, 3))]).unwrap();
    world.check();
    let pools = world.cache.pools().unwrap();
    assert_eq!(pools.len(), 4, "attention and states on each device");
}

#[test]
fn a_prompt_is_found_up_to_the_last_checkpoint() {
    for model in [hybrid(), mamba()] {
        let mut world = World::new(model, 40);
        let one = world.create();
        world.step(&[(one, &ids(0, 8))]).unwrap();
        world.step(&[(one, &ids(8, 7))]).unwrap();
        world.step(&[(one, &ids(15, 1))]).unwrap();
        for (prompt, length) in [(ids(0, 20), 16), (ids(0, 16), 8), (ids(0, 12), 8), (ids(0, 8), 0), (ids(1, 20), 0)] {
            let found = world.find(&prompt);
            assert_eq!(world.tokens[&found].len(), length, "of {} tokens", prompt.len());
            world.check();
            world.step(&[(found, &ids(100, 5))]).unwrap();
            world.check();
        }
    }
}

#[test]
fn a_resume_goes_back_to_a_checkpoint() {
    for model in [hybrid(), mamba()] {
        let mut world = World::new(model, 40);
        let one = world.create();
        world.step(&[(one, &ids(0, 8))]).unwrap();
        world.step(&[(one, &ids(8, 5))]).unwrap();
        let edited = [ids(0, 11), vec![99, 98]].concat();
        assert_eq!(world.cache.resume(one, &edited).unwrap(), 8);
        world.tokens.insert(one, ids(0, 8));
        world.check();
        world.step(&[(one, &edited[8..])]).unwrap();
        let longer = [&edited[..], &[1, 2]].concat();
        assert_eq!(world.cache.resume(one, &longer).unwrap(), 13, "all of the sequence");
        world.check();
    }
}

#[test]
fn a_run_reads_and_writes_states_on_another_thread() {
    for model in [hybrid(), mamba()] {
        let mut world = World::new(model, 40);
        let (one, other) = (world.create(), world.create());
        world.step(&[(one, &ids(0, 5))]).unwrap();
        let (of_one, of_other) = (ids(5, 2), ids(40, 3));
        let of: [(u64, &[u32]); 2] = [(other, &of_other), (one, &of_one)];
        let mut step = world.begin(&of).unwrap();
        let mut run = world.cache.run_step(&mut step).unwrap();
        std::thread::scope(|scope| scope.spawn(|| world.run(&mut run, &of)).join().unwrap()).unwrap();
        assert_eq!(run.read_states(2).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(run.write_states(0, &[0; 3]).unwrap_err().code(), Code::ShapeMismatch);
        // It may be written again.
        let again = run.read_states(0).unwrap();
        run.write_states(0, &crate::world::follow(&again, &of_other)).unwrap();
        world.cache.end_run(&mut step, run).unwrap();
        world.commit(step, &of).unwrap();
        world.check();
    }
}

#[test]
fn a_run_that_is_dropped_has_written_nothing() {
    let mut world = World::new(hybrid(), 40);
    let one = world.create();
    let tokens = ids(0, 5);
    let of: [(u64, &[u32]); 1] = [(one, &tokens)];
    let mut step = world.begin(&of).unwrap();
    let mut run = world.cache.run_step(&mut step).unwrap();
    world.run(&mut run, &of).unwrap();
    drop(run);
    let refusal = world.cache.commit_step(&mut step, None).unwrap_err();
    assert_eq!(refusal.to_string(), "the step cannot be committed: layers [0, 1, 2] are not written");
    world.write(&mut step, &of).unwrap();
    world.commit(step, &of).unwrap();
    world.check();
}

#[test]
fn a_step_without_its_states_is_not_committed() {
    let mut world = World::new(hybrid(), 40);
    let (one, other, idle) = (world.create(), world.create(), world.create());
    let (of_one, of_other) = (ids(0, 2), ids(9, 1));
    let of: [(u64, &[u32]); 3] = [(one, &of_one), (idle, &[]), (other, &of_other)];
    let mut step = world.begin(&of).unwrap();
    world.write(&mut step, &of).unwrap();
    world.cache.undo_step(&mut step).unwrap();
    world.check();

    let mut step = world.begin(&of).unwrap();
    let refusal = world.cache.write_states(&mut step, 1, &vec![1; world.bytes]).unwrap_err();
    assert!(refusal.to_string().contains("a sequence that gets tokens in this step"), "{refusal}");
    let refusal = world.cache.write_states(&mut step, 3, &vec![1; world.bytes]).unwrap_err();
    assert!(refusal.to_string().contains("below 3"), "{refusal}");
    let refusal = world.cache.write_states(&mut step, 0, &vec![1; world.bytes + 1]).unwrap_err();
    assert_eq!(refusal.code(), Code::ShapeMismatch);
    assert!(refusal.to_string().contains(&world.bytes.to_string()), "{refusal}");
    let refusal = world.cache.read_states_into(&step, 0, &mut [0; 7]).unwrap_err();
    assert_eq!(refusal.code(), Code::ShapeMismatch);
    assert_eq!(world.cache.states_of(77).unwrap_err().code(), Code::SequenceNotFound);

    let refused = |world: &mut World, step: &mut _| {
        let refusal = world.cache.commit_step(step, None).unwrap_err();
        assert_eq!(refusal.to_string(), "the step cannot be committed: layers [1, 2] are not written");
    };
    let kv = candle_core::Tensor::ones((1, 3, 2), candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
    for layer in [0, 2] {
        world.cache.write_layer(&mut step, layer, &kv, &kv).unwrap();
    }
    refused(&mut world, &mut step);
    world.cache.write_states(&mut step, 2, &vec![1; world.bytes]).unwrap();
    refused(&mut world, &mut step);
    world.write(&mut step, &of).unwrap();
    world.commit(step, &of).unwrap();
    world.check();
}

#[test]
fn calls_that_cannot_write_states_are_refused() {
    let zeros = [0; 8];
    let row = || HostTensor::new("k", &zeros, DType::F32, &[1, 1, 2]).unwrap();
    for model in [hybrid(), mamba()] {
        let mut world = World::new(model, 40);
        let one = world.create();
        let cache = &mut world.cache;
        let refusals = [
            cache.append(&[one], row(), row(), None),
            cache.append_to(one, None, Tokens::of_all(row(), row())),
            cache.append_to(
                one,
                None,
                Tokens::of_layers(&[[row().into(), row().into()], [row().into(), row().into()]]),
            ),
            cache.write_tokens(one, 0, 0, row(), row()),
            cache.write_kv(one, 0, 0, row(), row()),
        ];
        for refusal in refusals {
            let refusal = refusal.unwrap_err();
            assert_eq!(refusal.code(), Code::InvalidArgument);
            assert!(refusal.to_string().contains("a step, because layer"), "{refusal}");
        }
        assert!(cache.gather(one, 1).is_err() || world.layers.contains(&1));
        world.check();
    }
}

#[test]
fn a_cache_without_states_says_so() {
    let options = PagedKvCacheOptions { capacity: 4, head_dim: 2, ..Default::default() };
    let refusal =
        kvtide_tensor::PagedKvCache::new(PagedKvCacheOptions { states: true, ..options.clone() }).unwrap_err();
    assert!(refusal.to_string().contains("a model's layers"), "{refusal}");
    let mut cache = kvtide_tensor::PagedKvCache::new(options).unwrap();
    assert_eq!(cache.state_bytes(), 0);
    let sequence = cache.create_sequence().unwrap();
    let refusal = cache.states_of(sequence).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument);
    assert!(refusal.to_string().contains("a layer that keeps a state"), "{refusal}");
}

#[test]
fn tokens_are_counted_without_states() {
    let mut world = World::new(hybrid(), 40);
    assert_eq!(world.cache.bytes_per_token(), 32.);
    let one = world.create();
    world.step(&[(one, &ids(0, 9))]).unwrap();
    let cache = &mut world.cache;
    assert_eq!((cache.retained_length(one), cache.sequence_capacity(one)), (9, 12));
    let mut world = World::new(mamba(), 40);
    let one = world.create();
    world.step(&[(one, &ids(0, 9))]).unwrap();
    let cache = &mut world.cache;
    assert_eq!((cache.bytes_per_token(), cache.retained_length(one), cache.sequence_capacity(one)), (0., 9, 9));
}
