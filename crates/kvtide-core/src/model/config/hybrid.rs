//! The families whose layers keep states: short convolutions, Mamba, Mamba 2, and the gated delta rule.

use super::count::{Count, HeadDim};
use super::family::{LLAMA, LayerRule, LayerType, ModelFamily, Size};
use super::state::{Mamba2, StateForm, Width};

/// The names of types, as newer and older classes write them.
const LINEAR: &[(&str, LayerType)] = &[
    ("full_attention", LayerType::Full),
    ("linear_attention", LayerType::State),
    ("attention", LayerType::Full),
    ("mamba", LayerType::State),
];

const LFM2: ModelFamily = ModelFamily {
    model_type: "lfm2",
    architecture: "Lfm2ForCausalLM",
    rule: LayerRule::FullAt { field: "full_attn_idxs", missing: LayerType::Full },
    types: &[("full_attention", LayerType::Full), ("conv", LayerType::State)],
    hidden: 2560,
    hidden_is_multiple: false,
    kv_heads: Size::Required(8),
    state: Some(StateForm::ShortConvolution { kernel: Count::new("conv_L_cache", 3) }),
    ..LLAMA
};

/// Mamba 2 as Granite 4, Bamba and Falcon-H1 name its sizes.
const MAMBA2: Mamba2 = Mamba2 {
    width: Width::Expanded(Count::new("mamba_expand", 2)),
    heads: Count::new("mamba_n_heads", 128),
    head_dim: HeadDim::Auto("mamba_d_head"),
    groups: Count::new("mamba_n_groups", 1),
    state: Count::new("mamba_d_state", 256),
    kernel: Count::new("mamba_d_conv", 4),
    dtype: None,
};

const BAMBA: ModelFamily = ModelFamily {
    model_type: "bamba",
    architecture: "BambaForCausalLM",
    rule: LayerRule::FullAt { field: "attn_layer_indices", missing: LayerType::State },
    types: LINEAR,
    hidden_is_multiple: false,
    kv_heads: Size::Default(8),
    state: Some(StateForm::Mamba2(MAMBA2)),
    ..LLAMA
};

const MAMBA: ModelFamily = ModelFamily {
    model_type: "mamba",
    architecture: "MambaForCausalLM",
    rule: LayerRule::All(LayerType::State),
    lists: &[],
    hidden: 768,
    state: Some(StateForm::Mamba {
        expand: Count::new("expand", 2),
        state: Count::new("state_size", 16),
        kernel: Count::new("conv_kernel", 4),
    }),
    ..LLAMA
};

const QWEN3_NEXT: ModelFamily = ModelFamily {
    model_type: "qwen3_next",
    architecture: "Qwen3NextForCausalLM",
    rule: LayerRule::FullEvery { nth: 4, field: Some("full_attention_interval") },
    types: LINEAR,
    layers: Some(48),
    hidden: 2048,
    hidden_is_multiple: false,
    query_heads: 16,
    kv_heads: Size::Required(2),
    head_dim: Size::Required(256),
    state: Some(StateForm::DeltaRule {
        key_heads: Count::new("linear_num_key_heads", 16),
        value_heads: Count::new("linear_num_value_heads", 32),
        key_dim: Count::new("linear_key_head_dim", 128),
        value_dim: Count::new("linear_value_head_dim", 128),
        kernel: Count::new("linear_conv_kernel_dim", 4),
    }),
    ..LLAMA
};

const QWEN3_5: ModelFamily = ModelFamily {
    model_type: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
    layers: Some(32),
    hidden: 4096,
    kv_heads: Size::Required(4),
    ..QWEN3_NEXT
};

const QWEN3_5_MOE: ModelFamily = ModelFamily {
    model_type: "qwen3_5_moe_text",
    architecture: "Qwen3_5MoeForCausalLM",
    layers: Some(40),
    ..QWEN3_NEXT
};

pub(super) const FAMILIES: &[ModelFamily] = &[
    LFM2,
    ModelFamily {
        model_type: "lfm2_moe",
        architecture: "Lfm2MoeForCausalLM",
        rule: LayerRule::Listed,
        hidden: 2048,
        ..LFM2
    },
    ModelFamily {
        model_type: "granitemoehybrid",
        architecture: "GraniteMoeHybridForCausalLM",
        rule: LayerRule::All(LayerType::State),
        lists: &["layer_types", "layers_block_type"],
        kv_heads: Size::Derived,
        multiplier: Some(1.),
        ..BAMBA
    },
    BAMBA,
    ModelFamily {
        model_type: "falcon_h1",
        architecture: "FalconH1ForCausalLM",
        rule: LayerRule::All(LayerType::Both),
        types: &[("hybrid", LayerType::Both)],
        state: Some(StateForm::Mamba2(Mamba2 {
            width: Width::Given { field: Count::new("mamba_d_ssm", 1024), expand: Count::new("mamba_expand", 2) },
            ..MAMBA2
        })),
        ..BAMBA
    },
    ModelFamily {
        model_type: "nemotron_h",
        architecture: "NemotronHForCausalLM",
        rule: LayerRule::Pattern {
            field: "hybrid_override_pattern",
            letters: &[
                ('M', LayerType::State),
                ('*', LayerType::Full),
                ('-', LayerType::Empty),
                ('E', LayerType::Empty),
            ],
            default: "ME*-",
        },
        lists: &["layers_block_type", "layer_types"],
        types: &[
            ("full_attention", LayerType::Full),
            ("linear_attention", LayerType::State),
            ("mlp", LayerType::Empty),
            ("moe", LayerType::Empty),
            ("attention", LayerType::Full),
            ("mamba", LayerType::State),
        ],
        layers: None,
        head_dim: Size::Required(128),
        state: Some(StateForm::Mamba2(Mamba2 {
            width: Width::OfHeads,
            heads: Count::new("mamba_num_heads", 128),
            head_dim: HeadDim::Given(Count::new("mamba_head_dim", 64)),
            groups: Count::new("n_groups", 8).or("mamba_n_groups"),
            state: Count::new("ssm_state_size", 128),
            kernel: Count::new("conv_kernel", 4).or("mamba_d_conv"),
            dtype: Some("mamba_ssm_cache_dtype"),
        })),
        ..BAMBA
    },
    ModelFamily {
        model_type: "jamba",
        architecture: "JambaForCausalLM",
        rule: LayerRule::FullAtOffset { period: Count::new("attn_layer_period", 8), offset: ("attn_layer_offset", 4) },
        state: Some(StateForm::Mamba {
            expand: Count::new("mamba_expand", 2),
            state: Count::new("mamba_d_state", 16),
            kernel: Count::new("mamba_d_conv", 4),
        }),
        ..BAMBA
    },
    MAMBA,
    ModelFamily { model_type: "falcon_mamba", architecture: "FalconMambaForCausalLM", ..MAMBA },
    ModelFamily {
        model_type: "mamba2",
        architecture: "Mamba2ForCausalLM",
        layers: Some(64),
        hidden: 4096,
        state: Some(StateForm::Mamba2(Mamba2 {
            width: Width::Expanded(Count::new("expand", 2)),
            heads: Count::new("num_heads", 128),
            head_dim: HeadDim::Given(Count::new("head_dim", 64)),
            groups: Count::new("n_groups", 8),
            state: Count::new("state_size", 128),
            kernel: Count::new("conv_kernel", 4),
            dtype: None,
        })),
        ..MAMBA
    },
    QWEN3_NEXT,
    QWEN3_5,
    ModelFamily {
        model_type: "qwen3_5",
        architecture: "Qwen3_5ForConditionalGeneration",
        text: Some("qwen3_5_text"),
        ..QWEN3_5
    },
    QWEN3_5_MOE,
    ModelFamily {
        model_type: "qwen3_5_moe",
        architecture: "Qwen3_5MoeForConditionalGeneration",
        text: Some("qwen3_5_moe_text"),
        ..QWEN3_5_MOE
    },
];
