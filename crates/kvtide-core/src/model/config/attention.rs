//! The families whose layers have attention alone.

use super::count::Count;
use super::family::{LLAMA, LayerRule, ModelFamily, Size};

/// The field with the period of layers that keep every token.
const PATTERN: Option<&str> = Some("sliding_window_pattern");

const QWEN2: ModelFamily = ModelFamily {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    rule: LayerRule::SlidingFrom { first: Some(28), is_switched: true },
    hidden_is_multiple: false,
    kv_heads: Size::Default(32),
    window: Some(4096),
    ..LLAMA
};

const QWEN2_VL: ModelFamily = ModelFamily {
    model_type: "qwen2_vl_text",
    architecture: "Qwen2VLTextModel",
    rule: LayerRule::SlidingFrom { first: Some(80), is_switched: true },
    layers: Some(80),
    hidden: 8192,
    query_heads: 64,
    kv_heads: Size::Default(8),
    ..QWEN2
};

const GEMMA2: ModelFamily = ModelFamily {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    rule: LayerRule::FullEvery { nth: 2, field: None },
    layers: Some(26),
    hidden: 2304,
    query_heads: 8,
    kv_heads: Size::Required(4),
    head_dim: Size::Required(256),
    window: Some(4096),
    query_scalar: Some(256.),
    softcap: Some(50.),
    ..LLAMA
};

const GEMMA3: ModelFamily = ModelFamily {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    rule: LayerRule::FullEvery { nth: 6, field: PATTERN },
    softcap: None,
    ..GEMMA2
};

/// As Llama, with a scale for attention.
const GRANITE: ModelFamily = ModelFamily { hidden_is_multiple: false, multiplier: Some(1.), ..LLAMA };

/// A family of which all layers have a window, or those that `layer_types` lists.
const WINDOWED: ModelFamily =
    ModelFamily { rule: LayerRule::Sliding, hidden_is_multiple: false, kv_heads: Size::Default(8), ..LLAMA };

/// As Llama, with these defaults: of the number of layers, the hidden size, the heads of queries and of keys.
const fn like_llama(
    model_type: &'static str,
    architecture: &'static str,
    [layers, hidden, query_heads]: [u32; 3],
    kv_heads: Size,
) -> ModelFamily {
    ModelFamily {
        model_type,
        architecture,
        layers: Some(layers),
        hidden,
        hidden_is_multiple: false,
        query_heads,
        kv_heads,
        ..LLAMA
    }
}

impl ModelFamily {
    const fn with_head_dim(self, head_dim: Size) -> Self {
        ModelFamily { head_dim, ..self }
    }
}

/// The families.
pub(super) const FAMILIES: &[ModelFamily] = &[
    LLAMA,
    ModelFamily { model_type: "mistral", architecture: "MistralForCausalLM", window: Some(4096), ..WINDOWED },
    QWEN2,
    ModelFamily { model_type: "qwen3", architecture: "Qwen3ForCausalLM", head_dim: Size::Required(128), ..QWEN2 },
    GEMMA2,
    GEMMA3,
    ModelFamily {
        model_type: "gemma3",
        architecture: "Gemma3ForConditionalGeneration",
        text: Some("gemma3_text"),
        ..GEMMA3
    },
    ModelFamily { rule: LayerRule::Sliding, ..like_llama("phi3", "Phi3ForCausalLM", [32, 3072, 32], Size::Derived) },
    ModelFamily {
        rule: LayerRule::FullEvery { nth: 2, field: None },
        head_dim: Size::Default(64),
        window: Some(128),
        sink_logits: true,
        ..like_llama("gpt_oss", "GptOssForCausalLM", [36, 2880, 64], Size::Default(8))
    },
    like_llama("apertus", "ApertusForCausalLM", [32, 4096, 32], Size::Derived),
    like_llama("arcee", "ArceeForCausalLM", [32, 2560, 32], Size::Derived),
    like_llama("bitnet", "BitNetForCausalLM", [30, 2560, 20], Size::Default(5)),
    like_llama("cohere", "CohereForCausalLM", [40, 8192, 64], Size::Derived),
    ModelFamily {
        rule: LayerRule::FullEvery { nth: 4, field: PATTERN },
        window: Some(4096),
        ..like_llama("cohere2", "Cohere2ForCausalLM", [40, 8192, 64], Size::Derived)
    },
    ModelFamily {
        rule: LayerRule::SlidingFrom { first: Some(62), is_switched: false },
        window: Some(4096),
        ..like_llama("dots1", "Dots1ForCausalLM", [62, 4608, 32], Size::Default(32))
    },
    like_llama("ernie4_5", "Ernie4_5ForCausalLM", [18, 1024, 16], Size::Default(2)).with_head_dim(Size::Default(128)),
    like_llama("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", [28, 2560, 20], Size::Required(4)),
    ModelFamily {
        rule: LayerRule::FullEvery { nth: 4, field: PATTERN },
        window: Some(4096),
        ..like_llama("exaone4", "Exaone4ForCausalLM", [32, 4096, 32], Size::Required(32))
    },
    like_llama("flex_olmo", "FlexOlmoForCausalLM", [32, 4096, 32], Size::Derived),
    like_llama("gemma", "GemmaForCausalLM", [28, 3072, 16], Size::Required(16)).with_head_dim(Size::Required(256)),
    like_llama("glm", "GlmForCausalLM", [40, 4096, 32], Size::Required(2)).with_head_dim(Size::Required(128)),
    like_llama("glm4", "Glm4ForCausalLM", [40, 4096, 32], Size::Required(2)).with_head_dim(Size::Required(128)),
    like_llama("glm4_moe", "Glm4MoeForCausalLM", [46, 4096, 96], Size::Required(8)),
    ModelFamily { model_type: "granite", architecture: "GraniteForCausalLM", ..GRANITE },
    ModelFamily { model_type: "granitemoe", architecture: "GraniteMoeForCausalLM", ..GRANITE },
    ModelFamily { model_type: "granitemoeshared", architecture: "GraniteMoeSharedForCausalLM", ..GRANITE },
    like_llama("helium", "HeliumForCausalLM", [24, 2560, 20], Size::Required(20)).with_head_dim(Size::Required(128)),
    like_llama("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", [32, 4096, 32], Size::Derived),
    like_llama("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", [32, 4096, 32], Size::Derived),
    ModelFamily { model_type: "ministral", architecture: "MinistralForCausalLM", window: Some(4096), ..WINDOWED },
    ModelFamily {
        model_type: "ministral3",
        architecture: "Ministral3ForCausalLM",
        layers: Some(34),
        kv_heads: Size::Required(8),
        head_dim: Size::Required(128),
        ..WINDOWED
    },
    ModelFamily { model_type: "mixtral", architecture: "MixtralForCausalLM", ..WINDOWED },
    like_llama("olmo", "OlmoForCausalLM", [32, 4096, 32], Size::Derived),
    like_llama("olmo2", "Olmo2ForCausalLM", [32, 4096, 32], Size::Derived),
    ModelFamily {
        rule: LayerRule::FullEvery { nth: 4, field: None },
        window: Some(4096),
        ..like_llama("olmo3", "Olmo3ForCausalLM", [32, 4096, 32], Size::Derived)
    },
    like_llama("olmoe", "OlmoeForCausalLM", [16, 2048, 16], Size::Derived),
    like_llama("phi", "PhiForCausalLM", [24, 2048, 32], Size::Derived),
    ModelFamily { model_type: "phimoe", architecture: "PhimoeForCausalLM", ..WINDOWED },
    ModelFamily { model_type: "qwen2_5_vl_text", architecture: "Qwen2_5_VLTextModel", ..QWEN2_VL },
    QWEN2_VL,
    ModelFamily {
        rule: LayerRule::SlidingFrom { first: None, is_switched: true },
        window: Some(4096),
        ..like_llama("qwen3_moe", "Qwen3MoeForCausalLM", [24, 2048, 32], Size::Required(4))
    },
    like_llama("qwen3_vl_text", "Qwen3VLTextModel", [32, 4096, 32], Size::Default(32))
        .with_head_dim(Size::Required(128)),
    like_llama("seed_oss", "SeedOssForCausalLM", [64, 4096, 80], Size::Default(8)).with_head_dim(Size::Default(128)),
    ModelFamily {
        rule: LayerRule::SlidingUnrotated { period: Count::new("no_rope_layer_interval", 4) },
        ..like_llama("smollm3", "SmolLM3ForCausalLM", [36, 2048, 16], Size::Default(4))
    },
    like_llama("stablelm", "StableLmForCausalLM", [32, 2560, 32], Size::Required(32)),
    ModelFamily {
        rule: LayerRule::Sliding,
        ..like_llama("starcoder2", "Starcoder2ForCausalLM", [30, 3072, 24], Size::Required(2))
    },
    ModelFamily { model_type: "vaultgemma", architecture: "VaultGemmaForCausalLM", ..GEMMA2 },
];
