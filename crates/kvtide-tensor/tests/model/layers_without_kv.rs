//! Layers that keep a state or nothing: calls that need keys and values are refused, and name the layer.

use candle_core::{DType, Device, Tensor};
use kvtide_core::model::{LayerDescription, ModelDescription, StateDType, StateTensor};
use kvtide_core::paged::KeyOrValue;
use kvtide_tensor::{Error, PagedKvCache, PagedModelOptions, PoolRoom, StepTokens};

fn refusal<T>(called: Result<T, Error>) -> String {
    called.err().expect("a refusal").to_string()
}

#[test]
fn calls_that_need_keys_and_values_name_the_layer() {
    let layers = vec![LayerDescription::state(), LayerDescription::full(1, 4), LayerDescription::empty()];
    let conv = StateTensor { layer: 0, name: "conv".to_owned(), shape: vec![3], dtype: StateDType::F32 };
    let model = ModelDescription::new(layers).unwrap().with_states(vec![conv]).unwrap();
    let mut cache = PagedKvCache::of_model(PagedModelOptions::new(model, PoolRoom::Blocks(vec![4, 4]))).unwrap();
    let sequence = cache.create_sequence().unwrap();
    let rows = Tensor::ones((1, 2, 4), DType::F32, &Device::Cpu).unwrap();
    let tokens = StepTokens { sequences: &[sequence], offsets: Some(&[0, 2]), ..Default::default() };
    let mut step = cache.begin_step(tokens).unwrap();
    let without = [(0, "a state"), (2, "nothing")].map(|(layer, kept)| {
        (layer, format!("layer is {layer}, expected a layer with keys and values; layer {layer} keeps {kept}"))
    });
    for (layer, says) in without.clone() {
        assert_eq!(refusal(cache.place(layer)), says);
        assert_eq!(refusal(cache.token_elements(layer, KeyOrValue::Key)), says);
        assert_eq!(refusal(cache.gather(sequence, layer)), says);
        assert_eq!(refusal(cache.pages(layer, &[sequence])), says);
        assert_eq!(refusal(cache.layer_pages(layer, &[sequence])), says);
        assert_eq!(refusal(cache.write_layer(&mut step, layer, &rows, &rows)), says);
        assert_eq!(refusal(cache.step_layer(&step, layer)), says);
        assert_eq!(refusal(cache.check_written(&step, layer)), says);
    }
    assert_eq!(refusal(cache.place(3)), "layer is 3, expected below 3");
    cache.write_layer(&mut step, 1, &rows, &rows).unwrap();
    let mut run = cache.run_step(&mut step).unwrap();
    for (layer, says) in without {
        assert_eq!(refusal(run.write_layer(layer, &rows, &rows)), says);
        assert_eq!(refusal(run.layer(layer)), says);
        assert_eq!(refusal(run.gather(layer, 0)), says);
        assert_eq!(refusal(run.is_shared(layer)), says);
    }
}
