//! A cache of contiguous tensors: what a step may do, and what it refuses.

use candle_core::{Device, Tensor};
use decoder::{Cache, Contiguous, Keep};
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};

const FULL: LayerDescription =
    LayerDescription { kind: LayerKind::Full, num_kv_heads: 1, head_dim: 2, value_head_dim: 2 };

fn model(kinds: &[LayerKind]) -> ModelDescription {
    ModelDescription::new(kinds.iter().map(|&kind| FULL.with_kind(kind)).collect()).unwrap()
}

/// Tokens `first ..` of one row; every element is the token's number.
fn rows(first: usize, count: usize) -> Tensor {
    let numbers: Vec<f32> = (first..first + count).flat_map(|token| [token as f32; 2]).collect();
    Tensor::from_vec(numbers, (1, 1, count, 2), &Device::Cpu).unwrap()
}

/// Writes so many tokens to each layer in one step; answers what a query of the last one sees of the last layer.
fn step(cache: &mut Contiguous, layers: &[usize], count: usize) -> decoder::Result<Tensor> {
    let first = cache.len();
    cache.begin(count)?;
    for &layer in layers {
        cache.write(layer, &rows(first, count), &rows(first, count))?;
    }
    let seen = cache.attend(layers[layers.len() - 1], &rows(first, count))?;
    cache.commit()?;
    Ok(seen)
}

fn refusal<T>(result: decoder::Result<T>) -> String {
    result.err().expect("a refusal").to_string()
}

#[test]
fn positions_go_on_and_begin_behind_padding() {
    let mut cache = Contiguous::new(&model(&[LayerKind::Full]), &[0, 2], Keep::Everything).unwrap();
    assert_eq!((cache.rows(), cache.begin(3).unwrap()), (2, vec![0, 1, 2, 0, 0, 0]));
    let two = Tensor::cat(&[rows(0, 3), rows(0, 3)], 0).unwrap();
    cache.write(0, &two, &two).unwrap();
    cache.commit().unwrap();
    assert_eq!(cache.begin(2).unwrap(), [3, 4, 1, 2]);
}

#[test]
fn a_step_takes_every_layer_once_and_is_committed_whole() {
    let mut cache = Contiguous::new(&model(&[LayerKind::Full; 2]), &[0], Keep::Everything).unwrap();
    assert_eq!(refusal(cache.write(0, &rows(0, 1), &rows(0, 1))), "the step cannot go on: none was begun");
    cache.begin(2).unwrap();
    assert!(refusal(cache.attend(0, &rows(0, 2))).contains("layer 0 was not written"));
    assert!(refusal(cache.write(0, &rows(0, 3), &rows(0, 3))).contains("takes the 2 tokens"));
    cache.write(0, &rows(0, 2), &rows(0, 2)).unwrap();
    assert!(refusal(cache.write(0, &rows(0, 2), &rows(0, 2))).contains("once"));
    assert!(refusal(cache.commit()).contains("layers [1] were not written"));
    assert!(refusal(cache.begin(1)).contains("neither committed nor dropped"));
    assert!(cache.snapshot().is_err());
    cache.write(1, &rows(0, 2), &rows(0, 2)).unwrap();
    cache.commit().unwrap();
    assert_eq!(cache.len(), 2);
    assert!(refusal(cache.commit()).contains("none was begun"));
    assert!(refusal(cache.truncate(3)).contains("there are 2 tokens, not 3"));
}

#[test]
fn a_step_that_stopped_half_way_is_dropped() {
    let kinds = [LayerKind::Sliding { window: 2, sinks: 0 }, LayerKind::Full];
    for keep in [Keep::Everything, Keep::Windows] {
        let mut cache = Contiguous::new(&model(&kinds), &[0], keep).unwrap();
        step(&mut cache, &[0, 1], 4).unwrap();
        let snapshot = cache.snapshot().unwrap();
        cache.begin(3).unwrap();
        cache.write(0, &rows(50, 3), &rows(50, 3)).unwrap();
        if keep == Keep::Everything {
            cache.truncate(4).unwrap();
        } else {
            cache.restore(&snapshot).unwrap();
        }
        let seen = step(&mut cache, &[1, 0], 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(cache.len() == 5 && seen.iter().all(|number| (3. ..=4.).contains(number)), "{seen:?}");
    }
}

#[test]
fn a_layer_that_shares_sees_what_the_other_holds_and_takes_nothing() {
    let kinds = [LayerKind::Full, LayerKind::Sliding { window: 2, sinks: 0 }, LayerKind::SharedWith(1)];
    let mut cache = Contiguous::new(&model(&kinds), &[0], Keep::Windows).unwrap();
    step(&mut cache, &[0, 1], 4).unwrap();
    cache.begin(1).unwrap();
    assert!(refusal(cache.write(2, &rows(4, 1), &rows(4, 1))).contains("keeps nothing of its own"));
    for layer in [0, 1] {
        cache.write(layer, &rows(4, 1), &rows(4, 1)).unwrap();
    }
    let seen = [1, 2].map(|layer| cache.attend(layer, &rows(4, 1)).unwrap().flatten_all().unwrap());
    assert_eq!(seen[0].to_vec1::<f32>().unwrap(), seen[1].to_vec1::<f32>().unwrap());
    cache.commit().unwrap();
    assert_eq!(cache.kv(2).unwrap().unwrap().k.shape(), [1, 1, 2, 2]);
}

#[test]
fn a_window_that_moved_on_is_not_truncated_and_nothing_changes() {
    let kinds = [LayerKind::Full, LayerKind::Sliding { window: 2, sinks: 1 }];
    let mut cache = Contiguous::new(&model(&kinds), &[0], Keep::Windows).unwrap();
    step(&mut cache, &[0, 1], 3).unwrap();
    let snapshot = cache.snapshot().unwrap();
    step(&mut cache, &[0, 1], 2).unwrap();
    assert!(refusal(cache.truncate(3)).contains("the window has moved on"));
    let held = |cache: &Contiguous, layer| cache.kv(layer).unwrap().unwrap().k.to_f32().unwrap();
    assert_eq!((cache.len(), held(&cache, 0).len()), (5, 10));
    cache.restore(&snapshot).unwrap();
    assert_eq!((cache.len(), held(&cache, 0).len(), held(&cache, 1)), (3, 6, vec![0., 0., 1., 1., 2., 2.]));
}

#[test]
fn both_ways_to_keep_a_window_show_the_same() {
    let kinds = [LayerKind::Sliding { window: 3, sinks: 0 }];
    let [mut everything, mut window] =
        [Keep::Everything, Keep::Windows].map(|keep| Contiguous::new(&model(&kinds), &[0], keep).unwrap());
    for count in [1, 5, 1, 2, 70, 1, 1] {
        let seen = [&mut everything, &mut window]
            .map(|cache| step(cache, &[0], count).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
        for (one, other) in seen[0].iter().zip(&seen[1]) {
            assert!((one - other).abs() < 1e-4, "{one} {other}");
        }
    }
    assert_eq!((everything.len(), window.kv(0).unwrap().unwrap().k.shape()[2]), (81, 3));
}

#[test]
fn values_of_another_size_are_refused_by_name() {
    let layer = LayerDescription { value_head_dim: 4, ..FULL };
    let refused = Contiguous::new(&ModelDescription::new(vec![layer]).unwrap(), &[0], Keep::Everything);
    assert!(refusal(refused).starts_with("layers[0].valueHeadDim is 4"));
}
