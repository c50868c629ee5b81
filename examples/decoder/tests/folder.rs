//! Folders that cannot be read, and tokens that cannot be run: each refused by name.

use std::path::{Path, PathBuf};

use decoder::{Cache, Decoder, Layers, greedy};
use serde_json::{Value, json};

/// The model that the repository has.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../__test__/fixtures/llama/hf")
}

/// The refusal of the same model, its configuration changed.
fn refused_with(name: &str, field: &str, value: Value) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let text = std::fs::read_to_string(model().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config[field] = value;
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(model().join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    Decoder::read(&folder).err().expect("a refusal").to_string()
}

#[test]
fn a_folder_without_a_model_is_named() {
    let refused = Decoder::read(Path::new("nowhere")).err().unwrap().to_string();
    assert!(refused.contains("config.json cannot be read"), "{refused}");
}

#[test]
fn a_field_that_does_not_fit_is_named() {
    for (name, field, value, says) in [
        ("rope", "rope_scaling", json!({ "rope_type": "yarn" }), "rope_type is yarn"),
        ("act", "hidden_act", json!("relu"), "hidden_act is relu"),
        ("family", "model_type", json!("gpt_oss"), "model_type is gpt_oss"),
        ("rwkv", "model_type", json!("rwkv"), "recurrent state is not supported"),
        ("tied", "tie_word_embeddings", json!(1), "tie_word_embeddings is 1"),
        ("odd", "head_dim", json!(15), "head_dim is 15"),
        (
            "wide",
            "hidden_size",
            json!(128),
            "the weight model.embed_tokens.weight has shape [320, 64], expected [320, 128]",
        ),
        ("bias", "attention_bias", json!(true), "the weight model.layers.0.self_attn.q_proj.bias is missing"),
        ("qwen", "model_type", json!("qwen3"), "the weight model.layers.0.self_attn.q_norm.weight is missing"),
        ("deep", "num_hidden_layers", json!(4), "the weight model.layers.3"),
    ] {
        let refused = refused_with(name, field, value);
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn tokens_that_cannot_be_run_leave_the_cache_as_it_was() {
    let decoder = Decoder::read(&model()).unwrap();
    let mut cache = Layers::new(&decoder.config().model, &[0, 0], false).unwrap();
    let refused = decoder.forward(&[5, 320], &mut cache).unwrap_err().to_string();
    assert_eq!(refused, "token 320 at 1 is not below 320, the size of the vocabulary");
    for tokens in [&[][..], &[1, 2, 3]] {
        assert!(decoder.forward(tokens, &mut cache).unwrap_err().to_string().contains("among 2 rows"));
    }
    assert_eq!(cache.begin(&[1, 2]).unwrap(), [0, 0]);
}

#[test]
fn rows_of_a_batch_are_decoded_as_if_alone() {
    let decoder = Decoder::read(&model()).unwrap();
    let run = |tokens: &[u32], paddings: &[u32]| {
        let mut cache = Layers::new(&decoder.config().model, paddings, false).unwrap();
        let hidden = decoder.forward(tokens, &mut cache).unwrap();
        greedy(&decoder, &mut cache, decoder.last_logits(&hidden).unwrap(), 8).unwrap().tokens
    };
    let [one, other] = [[9, 8, 7], [0, 20, 21]];
    let together = run(&[one, other].concat(), &[0, 1]);
    assert_eq!(together, [run(&one, &[0]), run(&other[1..], &[0])].concat());
}
