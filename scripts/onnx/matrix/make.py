"""Makes tiny random models of many families as ONNX graphs, each with the results of transformers, to check the rewriter.

    python scripts/onnx/matrix/make.py <folder> [--only gemma2] [--builder <folder of onnxruntime_genai/models>]

Pitfalls: no other size may equal that of the vocabulary, or the builders mistake a projection for the head; builder 0.18.0 needs
transformers 5 in its folder (`pip install --target`), the other exporters 4.57.

Needs torch, transformers and optimum-onnx (with `--mobius`, also the folders of mobius-onnx and transformers 5); the builders of onnxruntime-genai run from their folder (their package need not be
installed: `pip install --no-deps --target folder onnxruntime-genai==0.18.0 onnx_ir`). Each model gets a folder with
references.json and references.safetensors, in the form of __test__/fixtures/llama, and a folder for each graph:
`KVTIDE_ONNX_FAMILIES=<folder> cargo test -p kvtide-onnx --test runtime` runs them all. vision.py makes models that see images.
"""
import argparse
import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import torch
import transformers
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
import genai_builder

VOCAB = 72
TINY = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, head_dim=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, torch_dtype='float32')
MIXED = ['sliding_attention', 'full_attention']

WIDE = dict(hidden_size=64)
OLD = dict(hidden_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=512, n_ctx=512, n_inner=96, head_dim=None)

FAMILIES = {
    'llama': ('LlamaConfig', dict(head_dim=16)),
    'llama-wide': ('LlamaConfig', dict(num_key_value_heads=4, head_dim=32, attention_bias=True)),
    'llama3-rope': ('LlamaConfig', dict(rope_scaling=dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                          original_max_position_embeddings=64))),
    'mistral': ('MistralConfig', dict(sliding_window=9, head_dim=16)),
    'mistral-full': ('MistralConfig', dict(sliding_window=None, head_dim=16)),
    'qwen2': ('Qwen2Config', dict()),
    'qwen2-window': ('Qwen2Config', dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    'qwen3': ('Qwen3Config', dict(head_dim=32)),
    'gemma': ('GemmaConfig', dict(head_dim=32)),
    'gemma2': ('Gemma2Config', dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=9, attn_logit_softcapping=5.0,
                                    final_logit_softcapping=10.0, layer_types=MIXED)),
    'gemma3': ('Gemma3TextConfig', dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=9, layer_types=MIXED)),
    'phi': ('PhiConfig', dict(WIDE, num_key_value_heads=4)),
    'phi3': ('Phi3Config', dict(hidden_size=64, sliding_window=None, original_max_position_embeddings=512)),
    'phi3-window': ('Phi3Config', dict(hidden_size=64, sliding_window=9, original_max_position_embeddings=512)),
    'phi3-long': ('Phi3Config', dict(hidden_size=64, sliding_window=None, max_position_embeddings=512, original_max_position_embeddings=64,
                                     rope_scaling=dict(type='longrope', short_factor=[1.1] * 8, long_factor=[2.0] * 8))),
    'smollm3': ('SmolLM3Config', dict(no_rope_layers=[1, 0])),
    'granite': ('GraniteConfig', dict(attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0)),
    'gpt-oss': ('GptOssConfig', dict(head_dim=16, sliding_window=9, num_local_experts=4, num_experts_per_tok=2, layer_types=MIXED,
                                     rope_scaling=None, rope_theta=10000.0)),
    'olmo': ('OlmoConfig', dict(WIDE)),
    'olmo2': ('Olmo2Config', dict(WIDE)),
    'stablelm': ('StableLmConfig', dict(WIDE)),
    'starcoder2': ('Starcoder2Config', dict(WIDE)),
    'cohere': ('CohereConfig', dict(WIDE)),
    'glm': ('GlmConfig', dict(head_dim=16)),
    'helium': ('HeliumConfig', dict(WIDE, head_dim=16)),
    'nemotron': ('NemotronConfig', dict(WIDE)),
    'ernie4_5': ('Ernie4_5Config', dict(head_dim=16)),
    'arcee': ('ArceeConfig', dict(head_dim=16)),
    'gpt2': ('GPT2Config', dict(OLD)),
    'gptj': ('GPTJConfig', dict(OLD, rotary_dim=8)),
    'gpt_neo': ('GPTNeoConfig', dict(hidden_size=64, num_layers=2, num_heads=4, attention_types=[[['global', 'local'], 1]], window_size=9,
                                     max_position_embeddings=160)),
    'gpt_neox': ('GPTNeoXConfig', dict(WIDE)),
    'gpt_bigcode': ('GPTBigCodeConfig', dict(OLD, multi_query=True)),
    'codegen': ('CodeGenConfig', dict(OLD, rotary_dim=8)),
    'opt': ('OPTConfig', dict(hidden_size=64, ffn_dim=96, word_embed_proj_dim=64)),
    'bloom': ('BloomConfig', dict(hidden_size=24, n_layer=2, n_head=3)),
    'mpt': ('MptConfig', dict(d_model=64, n_heads=4, n_layers=2, max_seq_len=512)),
    'falcon': ('FalconConfig', dict(hidden_size=64, head_dim=None, multi_query=True, new_decoder_architecture=False)),
    'falcon-alibi': ('FalconConfig', dict(hidden_size=64, head_dim=None, multi_query=False, new_decoder_architecture=False, alibi=True)),
    'apertus': ('ApertusConfig', dict(WIDE)),
    'bitnet': ('BitNetConfig', dict(WIDE, head_dim=16)),
    'deepseek_v3': ('DeepseekV3Config', dict(WIDE, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, v_head_dim=12,
                                             qk_nope_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                                             first_k_dense_replace=1, moe_intermediate_size=48, n_shared_experts=1, head_dim=8)),
    'dots1': ('Dots1Config', dict(head_dim=16, n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=48,
                                  n_shared_experts=1, n_group=1, topk_group=1)),
    'exaone4': ('Exaone4Config', dict(WIDE, sliding_window=9, layer_types=MIXED)),
    'exaone4-full': ('Exaone4Config', dict(WIDE, sliding_window=None, layer_types=['full_attention'] * 2)),
    'gemma3n': ('Gemma3nTextConfig', dict(head_dim=16, hidden_size_per_layer_input=8, vocab_size_per_layer_input=72, sliding_window=9, laurel_rank=4,
                                          layer_types=MIXED, num_kv_shared_layers=0, activation_sparsity_pattern=None)),
    'gemma3n-shared': ('Gemma3nTextConfig', dict(head_dim=16, hidden_size_per_layer_input=8, vocab_size_per_layer_input=72, sliding_window=9, laurel_rank=4,
                                                 num_hidden_layers=4, layer_types=MIXED * 2, num_kv_shared_layers=2, activation_sparsity_pattern=None)),
    'glm4': ('Glm4Config', dict(head_dim=16, attention_bias=True)),
    'hunyuan': ('HunYuanDenseV1Config', dict(head_dim=16)),
    'ministral': ('MinistralConfig', dict(sliding_window=9, head_dim=16, layer_types=MIXED)),
    'olmo3': ('Olmo3Config', dict(WIDE, sliding_window=9, layer_types=MIXED)),
    'olmoe': ('OlmoeConfig', dict(WIDE, num_experts=4, num_experts_per_tok=2)),
    'persimmon': ('PersimmonConfig', dict(WIDE, num_key_value_heads=4)),
    'phimoe': ('PhimoeConfig', dict(WIDE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    'qwen3_moe': ('Qwen3MoeConfig', dict(head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)),
    'seed_oss': ('SeedOssConfig', dict(head_dim=16, attention_bias=True)),
    'starcoder2-window': ('Starcoder2Config', dict(WIDE, sliding_window=9)),
    'vaultgemma': ('VaultGemmaConfig', dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=9, layer_types=MIXED)),
    'mixtral': ('MixtralConfig', dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    'qwen2_moe': ('Qwen2MoeConfig', dict(WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=48)),
    'glm4_moe': ('Glm4MoeConfig', dict(head_dim=16, n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=48,
                                       n_shared_experts=1, n_group=1, topk_group=1)),
    'granitemoe': ('GraniteMoeConfig', dict(WIDE, num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.2, embedding_multiplier=3.0,
                                            residual_multiplier=0.5, logits_scaling=2.0)),
    'ernie4_5_moe': ('Ernie4_5_MoeConfig', dict(head_dim=16, moe_num_experts=4, moe_k=2, moe_intermediate_size=48, moe_layer_start_index=1,
                                                moe_num_shared_experts=1)),
    'hunyuan_moe': ('HunYuanMoEV1Config', dict(head_dim=16, num_experts=4, moe_topk=2)),
    'flex_olmo': ('FlexOlmoConfig', dict(WIDE, num_experts=4, num_experts_per_tok=2)),
    'jetmoe': ('JetMoeConfig', dict(hidden_size=64, head_dim=None, kv_channels=16, num_local_experts=4, num_experts_per_tok=2)),
    'cohere2': ('Cohere2Config', dict(WIDE, sliding_window=9, layer_types=MIXED)),
    'deepseek_v2': ('DeepseekV2Config', dict(WIDE, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, v_head_dim=12, qk_nope_head_dim=16,
                                             n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=48, n_shared_experts=1,
                                             head_dim=8)),
    'diffllama': ('DiffLlamaConfig', dict(WIDE, head_dim=16)),
    'doge': ('DogeConfig', dict(WIDE, head_dim=16, keep_window_size=512)),
    'modernbert-decoder': ('ModernBertDecoderConfig', dict(WIDE, head_dim=None, num_key_value_heads=None, local_attention=18, layer_types=MIXED, cls_token_id=1, sep_token_id=2)),
    'biogpt': ('BioGptConfig', dict(WIDE, head_dim=None, num_key_value_heads=None)),
    'xglm': ('XGLMConfig', dict(d_model=64, num_layers=2, attention_heads=4, ffn_dim=96, head_dim=None, num_key_value_heads=None)),
    'gpt_neox_japanese': ('GPTNeoXJapaneseConfig', dict(WIDE, head_dim=None, num_key_value_heads=None, intermediate_multiple_size=2)),
    'falcon-new': ('FalconConfig', dict(hidden_size=64, head_dim=None, multi_query=False, new_decoder_architecture=True, num_kv_heads=2, num_key_value_heads=None)),
    'llama4': ('Llama4TextConfig', dict(WIDE, head_dim=16, intermediate_size_mlp=96, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                                        attention_chunk_size=16, no_rope_layers=[1, 0], layer_types=['chunked_attention', 'full_attention'])),
    'llama-linear': ('LlamaConfig', dict(head_dim=16, rope_scaling=dict(rope_type='linear', factor=2.0))),
    'llama-yarn': ('LlamaConfig', dict(head_dim=16, rope_scaling=dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=128))),
    'llama-dynamic': ('LlamaConfig', dict(head_dim=16, max_position_embeddings=64, rope_scaling=dict(rope_type='dynamic', factor=2.0))),
}


# Graphs that differ in their attention, positions, masks or layers: those of __test__/fixtures/families that `--fixtures` makes.
FIXTURES = {
    'apertus': ['dynamo'], 'arcee': ['dynamo'], 'bitnet': ['optimum'], 'codegen': ['optimum'], 'deepseek_v3': ['optimum'], 'dots1': ['optimum'],
    'ernie4_5': ['optimum', 'builder-f32'], 'exaone4': ['optimum'], 'exaone4-full': ['mobius-static'], 'falcon-alibi': ['optimum'],
    'flex_olmo': ['mobius'], 'gemma': ['builder-hidden', 'quantised'], 'gemma3': ['optimum', 'builder-f32', 'mobius'], 'gemma3n': ['optimum'],
    'gemma3n-shared': ['optimum'], 'glm': ['optimum'], 'glm4': ['dynamo'], 'glm4_moe': ['optimum'], 'gpt_bigcode': ['optimum'],
    'gpt_neox': ['optimum'], 'gptj': ['optimum'], 'granitemoe': ['mobius'], 'helium': ['optimum'], 'hunyuan': ['builder-f32'],
    'llama-dynamic': ['optimum'], 'llama-linear': ['mobius'], 'llama-yarn': ['mobius'], 'llama3-rope': ['builder-int4', 'quantised'],
    'ministral': ['optimum'], 'mistral': ['optimum', 'builder-f32'], 'mixtral': ['mobius'], 'mpt': ['optimum'],
    'nemotron': ['optimum', 'builder-f32'], 'olmo': ['optimum'], 'olmo2': ['dynamo'], 'olmo3': ['optimum'], 'olmoe': ['mobius-static'],
    'opt': ['optimum'], 'persimmon': ['optimum'], 'phi': ['optimum', 'builder-f32'], 'phi3': ['optimum'], 'phi3-window': ['optimum'],
    'phimoe': ['optimum'], 'qwen2': ['quantised', 'builder-int4', 'mobius-static'], 'qwen3_moe': ['optimum'], 'seed_oss': ['dynamo'],
    'smollm3': ['optimum'], 'starcoder2': ['optimum'], 'starcoder2-window': ['optimum'], 'vaultgemma': ['optimum'],
}


def make(name, folder, is_coarse=False):
    kind, extra = FAMILIES[name]
    torch.manual_seed(11)
    config = getattr(transformers, kind)(**{key: value for key, value in {**TINY, **extra}.items() if value is not None or key == 'sliding_window'})
    config._attn_implementation = 'eager'
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager').float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.2 if 'embed' not in key else 0.5)
            elif 'norm' not in key:
                weight.normal_(0, 0.5)
            if is_coarse:
                # Such weights compress to a fifth.
                weight.copy_((weight * 16).round() / 16)
    model.save_pretrained(folder / 'hf')
    refer(model, folder)
    return model


def refer(model, folder):
    generator = torch.Generator().manual_seed(5)
    # Those of LongRoPE grow beyond the change of its factors, or begin behind it.
    longer = (60, 100) if getattr(model.config, 'rope_scaling', None) and model.config.model_type == 'phi3' else ()
    prompts = {f'p{n}': torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in (1, 7, 33, *longer)}
    greedy, tensors = {}, {}
    # Layers read the keys and values of another layer from the cache; without one, each computes its own.
    is_shared = getattr(model.config, 'num_kv_shared_layers', 0) > 0
    for name, prompt in prompts.items():
        ids, rows = list(prompt), []
        with torch.no_grad():
            # Each token is that of a whole pass: factors of LongRoPE depend on the length of all of it.
            for _ in range(12):
                logits = model(torch.tensor([ids]), use_cache=is_shared).logits[0].float()
                if not rows:
                    tensors[f'logits.{name}'] = logits.clone()
                rows.append(logits[-1].clone())
                ids.append(int(logits[-1].argmax()))
        greedy[name] = ids[len(prompt):]
        tensors[f'greedy_logits.{name}'] = torch.stack(rows)
    save_file(tensors, folder / 'references.safetensors')
    (folder / 'references.json').write_text(json.dumps(dict(vocab_size=VOCAB, prompts=prompts, greedy=greedy)))


def optimum(folder):
    from optimum.exporters.onnx import main_export
    from optimum.exporters.onnx.model_configs import LlamaOnnxConfig
    from optimum.exporters.tasks import TasksManager
    from optimum.utils import NormalizedTextConfig
    task = 'text-generation-with-past'
    kind = json.loads((folder / 'hf' / 'config.json').read_text())['model_type']
    # A family that it does not know by name is exported as Llama is.
    if task not in TasksManager._SUPPORTED_MODEL_TYPE.get(kind, {}).get('onnx', {}):
        # Layers that read another layer's keys and values have no past.
        layers = property(lambda self: self.config.num_hidden_layers - getattr(self.config, 'num_kv_shared_layers', 0))
        normalized = type('Normalized', (NormalizedTextConfig,), dict(num_layers=layers))
        own = type(kind, (LlamaOnnxConfig,), dict(NORMALIZED_CONFIG_CLASS=normalized))
        TasksManager.create_register('onnx')(kind, 'text-generation', task, library_name='transformers')(own)
    main_export(str(folder / 'hf'), output=folder / 'optimum', task=task, do_validation=False, no_post_process=True,
                library_name='transformers')


def dynamo(folder):
    """Exports a model without windows with torch's newer exporter, which uses ONNX's own Attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / 'hf', attn_implementation='sdpa').eval()
    layers = model.config.num_hidden_layers
    heads = model.config.num_key_value_heads
    dim = getattr(model.config, 'head_dim', None) or model.config.hidden_size // model.config.num_attention_heads

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, position_ids, pasts):
            cache = transformers.DynamicCache.from_legacy_cache(tuple(zip(pasts[0::2], pasts[1::2])))
            # The exporter cannot trace transformers' masks, which use vmap: this mask is causal, without a window.
            keys = torch.arange(attention_mask.shape[1])
            seen = (keys[None, None, None, :] <= position_ids[:, None, :, None]) & attention_mask.bool()[:, None, None, :]
            out = self.model(input_ids=input_ids, attention_mask=seen, position_ids=position_ids, past_key_values=cache, use_cache=True)
            flat = [t for layer in out.past_key_values.to_legacy_cache() for t in layer]
            return (out.logits, *flat)

    pasts = [torch.zeros(2, heads, 4, dim) for _ in range(2 * layers)]
    names = [f'past_key_values.{i}.{kind}' for i in range(layers) for kind in ('key', 'value')]
    batch, new, past = torch.export.Dim('batch'), torch.export.Dim('new'), torch.export.Dim('past')
    (folder / 'dynamo').mkdir(exist_ok=True)
    torch.onnx.export(
        Step(), (torch.ones(2, 3, dtype=torch.long), torch.ones(2, 7, dtype=torch.long), torch.ones(2, 3, dtype=torch.long), pasts),
        str(folder / 'dynamo' / 'model.onnx'), dynamo=True, opset_version=23, external_data=False,
        input_names=['input_ids', 'attention_mask', 'position_ids', *names],
        output_names=['logits', *[name.replace('past_key_values', 'present') for name in names]],
        dynamic_shapes=({0: batch, 1: new}, {0: batch, 1: torch.export.Dim.AUTO}, {0: batch, 1: new}, [{0: batch, 2: past} for _ in pasts]))
    # Otherwise the graph would contain paths and lines of Python.
    path = folder / 'dynamo' / 'model.onnx'
    graph = onnx.load(path)
    for thing in (graph, graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.input, *graph.graph.output, *graph.graph.initializer):
        del thing.metadata_props[:]
        thing.doc_string = ''
    onnx.save(graph, path)


# The forms that onnxruntime-genai's builder makes: on the CPU, half floats give MultiHeadAttention, with keys and values concatenated to
# the past before it; those of the CUDA builds give GroupQueryAttention with norms inside.
BUILT = {
    'f32': ['-p', 'fp32', '-e', 'cpu'],
    'f16': ['-p', 'fp16', '-e', 'cpu'],
    'int4': ['-p', 'int4', '-e', 'cpu', '--extra_options', 'block_size=32', 'accuracy_level=4'],
    'pruned': ['-p', 'fp32', '-e', 'cpu', '--extra_options', 'prune_lm_head=1'],
    'hidden': ['-p', 'fp32', '-e', 'cpu', '--extra_options', 'include_hidden_states=1'],
    'embeds': ['-p', 'fp32', '-e', 'cpu', '--extra_options', 'exclude_embeds=1'],
    'cuda-f16': ['-p', 'fp16', '-e', 'cuda'],
    'int8-past': ['-p', 'fp32', '-e', 'cpu', '--extra_options', 'kv_cache_quant_scheme=int8_per_tensor'],
    'int4-past': ['-p', 'fp32', '-e', 'cpu', '--extra_options', 'kv_cache_quant_scheme=int4_per_channel'],
}
# Forms of which one graph is enough: all that take embeddings are refused without these (vision.py makes both), and pasts of codes
# differ in their element type only.
ONCE = ['embeds', 'int8-past', 'int4-past']


def quantised(folder):
    """Quantises optimum's graph dynamically: products of bytes, with one scale for all rows of a call."""
    from onnxruntime.quantization import quantize_dynamic
    (folder / 'quantised').mkdir(exist_ok=True)
    quantize_dynamic(str(folder / 'optimum' / 'model.onnx'), str(folder / 'quantised' / 'model.onnx'))


def combined(folder):
    """Gives optimum's graph of gpt2 the form of onnxruntime's convert_to_onnx, which transformers 4.57 breaks: integers of 32 bits, and
    one past of keys and values for each layer. In `combined-fused`, its attention is com.microsoft.Attention, as the optimizer writes it."""
    from onnx import TensorProto, helper, numpy_helper
    model = onnx.load(folder / 'optimum' / 'model.onnx')
    graph = model.graph
    config = json.loads((folder / 'hf' / 'config.json').read_text())
    layers, heads = config['n_layer'], config['n_head']
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.INT64:
            value.type.tensor_type.elem_type = TensorProto.INT32
    kept = {kind: [value for value in getattr(graph, kind) if not value.name.startswith(('past', 'present'))] for kind in ('input', 'output')}
    before, after = [], []
    int64 = lambda name, values: numpy_helper.from_array(numpy.array(values, numpy.int64), name)
    graph.initializer.extend([int64('halves', [1, 1]), int64('first axis', [0])])
    for layer in range(layers):
        dims = lambda rows: [2, 'batch_size', heads, rows, config['n_embd'] // heads]
        past, present = f'past_{layer}', f'present_{layer}'
        kept['input'].append(helper.make_tensor_value_info(past, TensorProto.FLOAT, dims('past_seq_len')))
        kept['output'].append(helper.make_tensor_value_info(present, TensorProto.FLOAT, dims('total_seq_len')))
        sides = ['key', 'value']
        before.append(helper.make_node('Split', [past, 'halves'], [f'{past}.{side}' for side in sides], f'{past}/Split', axis=0))
        for side in sides:
            before.append(helper.make_node('Squeeze', [f'{past}.{side}', 'first axis'], [f'past_key_values.{layer}.{side}'], f'{past}/{side}'))
            after.append(helper.make_node('Unsqueeze', [f'present.{layer}.{side}', 'first axis'], [f'{present}.{side}'], f'{present}/{side}'))
        after.append(helper.make_node('Concat', [f'{present}.{side}' for side in sides], [present], f'{present}/Concat', axis=0))
    nodes = list(graph.node)

    def save(way, nodes, domains=()):
        made = {name: node for node in nodes for name in node.output}
        alive, todo = set(), [value.name for value in kept['output']]
        while todo:
            name = todo.pop()
            if name not in alive:
                alive.add(name)
                todo.extend(made[name].input if name in made else [])
        own = onnx.ModelProto()
        own.CopyFrom(model)
        for kind, values in [*kept.items(), ('node', [node for node in nodes if alive & set(node.output)]), ('value_info', []),
                             ('initializer', [tensor for tensor in graph.initializer if tensor.name in alive])]:
            own.graph.ClearField(kind)
            getattr(own.graph, kind).extend(values)
        own.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)
        (folder / way).mkdir(exist_ok=True)
        onnx.save(own, folder / way / 'model.onnx')

    save('combined', before + nodes + after)
    fused = [helper.make_node('Cast', ['attention_mask'], ['mask'], 'mask/Cast', to=TensorProto.INT32)]
    outputs = {f'/transformer/h.{layer}/attn/Reshape_3_output_0': layer for layer in range(layers)}
    for node in nodes:
        layer = outputs.get(node.output[0])
        if layer is not None:
            at = f'transformer.h.{layer}.attn.c_attn'
            inputs = [f'/transformer/h.{layer}/ln_1/LayerNormalization_output_0', f'{at}.weight', f'{at}.bias', 'mask', f'past_{layer}']
            node = helper.make_node('Attention', inputs, [node.output[0], f'present_{layer}'], f'GptAttention_{layer}', domain='com.microsoft',
                                    num_heads=heads, unidirectional=1)
        fused.append(node)
    save('combined-fused', fused, ['com.microsoft'])


def calibrate(folder, path, per_channel):
    """Writes the scales of keys and values of eight bits: the largest of each layer, or of each channel, in the longest prompt."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / 'hf', attn_implementation='eager').eval()
    prompt = max(json.loads((folder / 'references.json').read_text())['prompts'].values(), key=len)
    with torch.no_grad():
        pasts = model(torch.tensor([prompt]), use_cache=True).past_key_values.to_legacy_cache()
    largest = lambda rows: (rows.abs().amax(dim=(0, 2)).flatten() if per_channel else rows.abs().max().reshape(1)) / 127
    keys, values = [[largest(layer[side]).tolist() for layer in pasts] for side in (0, 1)]
    path.write_text(json.dumps(dict(qmax=127, scales=dict(k_scales=keys, v_scales=values))))


# The models have no tokenizers.
NO_TOKENIZER = '''t.AutoTokenizer.from_pretrained = classmethod(lambda c, *a, **k: type("T", (), dict(
    save_pretrained=lambda s, *a, **k: None, get_vocab=lambda s: {}, __len__=lambda s: 72))())'''


def build(builder, folder, tag, form):
    options = BUILT[form]
    if form.endswith('-past'):
        scales = (folder / f'{form}.json').resolve()
        calibrate(folder, scales, 'per_channel' in options[-1])
        options = [*options, f'kv_cache_scale_file={scales}']
    genai_builder.build(builder, folder / 'hf', folder / tag, options, NO_TOKENIZER)


# Those of mobius-onnx: ONNX's Attention of opset 24, with a past that grows or with a static cache.
MOBIUS = {'mobius': [], 'mobius-static': ['--static-cache', '--max-seq-len', '160']}


def mobius(packages, folder, form):
    run = subprocess.run([sys.executable, '-m', 'mobius', 'build', '--config', str(folder / 'hf'), '--dtype', 'f32', *MOBIUS[form], str(folder / form)],
                         env={**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, packages)), 'HF_HUB_OFFLINE': '1'}, capture_output=True, text=True)
    if not (folder / form / 'model.onnx').exists():
        raise RuntimeError((run.stderr.strip().splitlines() or ['no model'])[-1])


def export(name, arguments):
    """Makes a model and its graphs. Unless all forms were tried, a run with `--keep` makes them again."""
    folder = arguments.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.keep and (folder / 'made').exists():
        return
    (folder / 'made').unlink(missing_ok=True)
    ways = [(way, globals()[way]) for way in ('optimum', 'quantised', 'dynamo', 'combined')
            if way in arguments.ways and (way != 'combined' or name == 'gpt2')]
    if 'builder' in arguments.ways:
        for form in BUILT:
            if form in ONCE and name != 'llama':
                continue
            tag = f'builder-{form}'
            ways.append((tag, lambda at, tag=tag, form=form: build(arguments.builder, at, tag, form)))
    if arguments.mobius:
        ways += [(form, lambda at, form=form: mobius(arguments.mobius, at, form)) for form in MOBIUS]
    if arguments.fixtures:
        # Weights that are quantised are those of optimum's graph.
        needed = {*FIXTURES[name], *(['optimum'] if 'quantised' in FIXTURES[name] else [])}
        ways = [(way, made) for way, made in ways if way in needed]
    try:
        make(name, folder, arguments.fixtures)
    except Exception as error:
        print(name, 'FAILED', type(error).__name__, error, flush=True)
        return
    unknown = None
    for way, made in ways:
        exporter = way.split('-')[0]
        if exporter == unknown or way == 'dynamo' and json.loads((folder / 'hf' / 'config.json').read_text()).get('sliding_window'):
            continue
        try:
            made(folder)
            print(name, way, 'ok', flush=True)
        except Exception as error:
            print(name, way, 'FAILED', type(error).__name__, str(error)[-300:], flush=True)
            # The same answer for each form would take minutes.
            if 'is not currently supported' in str(error):
                unknown = exporter
    (folder / 'made').touch()


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--only', nargs='*')
    parser.add_argument('--builder', type=Path)
    parser.add_argument('--mobius', type=Path, nargs='*', help='folders with mobius-onnx and transformers 5')
    parser.add_argument('--keep', action='store_true', help='keep the families that an earlier run has made')
    parser.add_argument('--ways', nargs='*', default=['optimum', 'quantised', 'dynamo', 'combined', 'builder'])
    parser.add_argument('--fixtures', action='store_true', help='make the graphs of FIXTURES, with weights that compress')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='families that are exported at the same time')
    arguments = parser.parse_args()
    names = [name for name in (FIXTURES if arguments.fixtures else FAMILIES) if not arguments.only or name in arguments.only]
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context('spawn')) as pool:
        list(pool.map(export, names, [arguments] * len(names)))
