// The config.json files of published models with states, reduced to the fields that a description reads.

const LFM2 = {
  model_type: 'lfm2',
  num_hidden_layers: 16,
  num_key_value_heads: 8,
  full_attn_idxs: [2, 5, 8, 10, 12, 14],
}

/** Granite 4: every tenth layer has attention, from the sixth on. */
const granite = (sizes: object): object => ({
  model_type: 'granitemoehybrid',
  num_hidden_layers: 40,
  layer_types: Array.from({ length: 40 }, (_, layer) => (layer % 10 === 5 ? 'attention' : 'mamba')),
  mamba_d_head: 64,
  mamba_d_state: 128,
  mamba_n_groups: 1,
  ...sizes,
})

/** The layers of LFM2-8B-A1B that have attention. */
const MOE_ATTENTION = new Set([2, 6, 10, 14, 18, 21])

/** The models by their names. Fields that are missing have the defaults of the class in transformers. */
export const HYBRID_CONFIGS: Readonly<Record<string, object>> = {
  'LFM2 350M': { ...LFM2, hidden_size: 1024, num_attention_heads: 16 },
  'LFM2 1.2B': { ...LFM2, hidden_size: 2048, num_attention_heads: 32 },
  'LFM2 8B-A1B': {
    model_type: 'lfm2_moe',
    num_hidden_layers: 24,
    layer_types: Array.from({ length: 24 }, (_, layer) => (MOE_ATTENTION.has(layer) ? 'full_attention' : 'conv')),
  },
  'Granite 4.0 H Micro': granite({
    hidden_size: 2048,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    mamba_n_heads: 64,
  }),
  'Granite 4.0 H Tiny': granite({
    hidden_size: 1536,
    num_attention_heads: 12,
    num_key_value_heads: 4,
    mamba_n_heads: 48,
  }),
  'Granite 4.0 H Small': granite({
    hidden_size: 4096,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    mamba_n_heads: 128,
  }),
  'Bamba 9B': { model_type: 'bamba', attn_layer_indices: [9, 18, 27], mamba_d_state: 128 },
  'Falcon-H1 1.5B': {
    model_type: 'falcon_h1',
    num_hidden_layers: 24,
    hidden_size: 2048,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 128,
    mamba_d_ssm: 3072,
    mamba_n_heads: 48,
    mamba_d_head: 64,
    mamba_d_state: 256,
  },
  'Nemotron-H 8B': {
    model_type: 'nemotron_h',
    hybrid_override_pattern: 'M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-',
  },
  'Jamba 1.5 Mini': { model_type: 'jamba' },
  'Mamba 2.8B': { model_type: 'mamba', hidden_size: 2560, num_hidden_layers: 64 },
  'Mamba 2 2.7B': { model_type: 'mamba2', hidden_size: 2560, num_heads: 80, n_groups: 1 },
  'Qwen3-Next 80B-A3B': { model_type: 'qwen3_next' },
  'Qwen3.5 35B-A3B': { model_type: 'qwen3_5_moe', text_config: {} },
}
