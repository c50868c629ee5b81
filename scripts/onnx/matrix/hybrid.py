"""Makes tiny random hybrid models as ONNX graphs, each with the greedy tokens of transformers: layers with a state beside layers with attention.

    PYTHONPATH=<transformers 5> python scripts/onnx/matrix/hybrid.py <folder> [--only lfm2] [--builder <folder of onnxruntime_genai/models>] [--mobius <folders>]

The whole script needs transformers 5, which alone has all of these families. `written` graphs are those of written.py, for families that no exporter writes.
Each model gets a folder in the form of make.py, so that run.mjs runs them all.
"""
import argparse
import json
import shutil
from pathlib import Path

import numpy
import onnx
import torch
import transformers
from onnx import helper, numpy_helper
from safetensors.torch import save_file

import written
from make import VOCAB, build, mobius

TINY = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype='float32')
DELTA = dict(head_dim=32, linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             layer_types=['linear_attention', 'linear_attention', 'full_attention', 'linear_attention'])
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=48)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16)

# The class of the config, its fields, and the ways to export it.
FAMILIES = {
    'lfm2': ('Lfm2Config', dict(layer_types=['conv', 'full_attention', 'conv', 'full_attention'], conv_L_cache=3, block_auto_adjust_ff_dim=False),
             ['builder-f32', 'builder-int4-floats', 'builder-pruned']),
    'qwen3-next': ('Qwen3NextConfig', dict(DELTA, **EXPERTS), ['mobius']),
    'qwen3_5-text': ('Qwen3_5TextConfig', dict(DELTA), ['mobius']),
    # The builder takes a model with a tower alone, of which it exports the text.
    'qwen3_5': ('Qwen3_5Config', dict(text_config=dict(TINY, **DELTA), vision_config=dict(
        depth=1, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=2, spatial_merge_size=2, temporal_patch_size=1, out_hidden_size=64,
        num_position_embeddings=16)), ['builder-f32-text']),
    'granite-hybrid': ('GraniteMoeHybridConfig', dict(MAMBA, layer_types=['mamba', 'attention', 'mamba', 'mamba'], num_local_experts=0, shared_intermediate_size=96,
                                                      position_embedding_type=None, attention_multiplier=0.2, embedding_multiplier=3.0,
                                                      residual_multiplier=0.5, logits_scaling=0.5), ['written']),
    'bamba': ('BambaConfig', dict(MAMBA, mamba_n_groups=2, attn_layer_indices=[1]), ['written']),
    'falcon-h1': ('FalconH1Config', dict(MAMBA, mamba_n_groups=2, mamba_d_ssm=128, key_multiplier=0.7, ssm_in_multiplier=1.2, ssm_out_multiplier=0.6,
                                         attention_in_multiplier=0.9, attention_out_multiplier=0.8, ssm_multipliers=[0.7, 1.1, 0.9, 1.2, 0.8],
                                         mlp_multipliers=[0.9, 0.6], embedding_multiplier=1.5, lm_head_multiplier=0.5), ['written']),
    'jamba': ('JambaConfig', dict(mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=8, attn_layer_period=4, attn_layer_offset=1, num_experts=1),
              ['written']),
    'nemotron-h': ('NemotronHConfig', dict(layers_block_type=['linear_attention', 'mlp', 'full_attention', 'linear_attention'], head_dim=16, mamba_num_heads=8,
                                           mamba_head_dim=16, n_groups=2, ssm_state_size=16, conv_kernel=4, chunk_size=16), ['written']),
    'mamba': ('MambaConfig', dict(state_size=16, conv_kernel=4, expand=2, time_step_rank=8), ['written']),
    'mamba2': ('Mamba2Config', dict(num_heads=8, head_dim=16, state_size=16, n_groups=1, conv_kernel=4, expand=2, chunk_size=16), ['written']),
}

GREEDY = 12


def make(name, folder):
    kind, extra, _ = FAMILIES[name]
    torch.manual_seed(11)
    is_whole = 'text_config' in extra
    config = getattr(transformers, kind)(**(extra if is_whole else {**TINY, **extra}))
    config._attn_implementation = 'eager'
    kind = transformers.AutoModelForImageTextToText if is_whole else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation='eager').float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if 'norm' in key or key.endswith(('A_log', 'dt_bias', '.D')):
                continue
            if weight.dim() > 1:
                weight.normal_(0, 1.0 if 'lm_head' in key else 0.5 if 'embed' in key or 'conv' in key else 0.3)
            else:
                weight.normal_(0, 0.5)
    shutil.rmtree(folder / 'hf', ignore_errors=True)
    model.save_pretrained(folder / 'hf')
    refer(model, folder)
    return model


def refer(model, folder):
    generator = torch.Generator().manual_seed(5)
    prompts = {f'p{n}': torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in (5, 40, 100)}
    greedy, tensors, gap = {}, {}, float('inf')
    for name, prompt in prompts.items():
        ids, rows = list(prompt), []
        with torch.no_grad():
            # Each token is that of a whole pass without a cache.
            for _ in range(GREEDY):
                logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
                if not rows:
                    tensors[f'logits.{name}'] = logits.clone()
                rows.append(logits[-1].clone())
                best = logits[-1].topk(2).values
                gap = min(gap, float(best[0] - best[1]))
                ids.append(int(logits[-1].argmax()))
        greedy[name] = ids[len(prompt):]
        tensors[f'greedy_logits.{name}'] = torch.stack(rows)
    print(folder.name, 'smallest distance of the two largest logits:', round(gap, 4), 'largest logit:', round(float(tensors['logits.p5'].abs().max()), 2),
          'different greedy tokens:', len(set(sum(greedy.values(), []))), flush=True)
    save_file(tensors, folder / 'references.safetensors')
    (folder / 'references.json').write_text(json.dumps(dict(vocab_size=VOCAB, prompts=prompts, greedy=greedy)))


def in_floats(folder):
    """Lets products with int4 weights compute in floats. With activations of int8, a difference in the last bit changes roundings, and then tokens."""
    model = onnx.load(folder / 'model.onnx', load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == 'accuracy_level':
                attribute.i = 0
    onnx.save(model, folder / 'model.onnx')


def text_alone(folder):
    """Passes the first row of positions to the rotary embeddings, which onnxruntime 1.31 refuses with three rows. All rows of text are alike."""
    model = onnx.load(folder / 'model.onnx', load_external_data=False)
    graph = model.graph
    for node in graph.node:
        if node.op_type == 'RotaryEmbedding':
            node.input[:] = ['first positions' if name == 'position_ids' else name for name in node.input]
    graph.initializer.append(numpy_helper.from_array(numpy.array(0), 'first row'))
    graph.node.insert(0, helper.make_node('Gather', ['position_ids', 'first row'], ['first positions'], 'first positions', axis=0))
    onnx.save(model, folder / 'model.onnx')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--only', nargs='*')
    parser.add_argument('--builder', type=Path)
    parser.add_argument('--mobius', type=Path, nargs='*', help='folders with mobius-onnx and transformers 5')
    arguments = parser.parse_args()
    for name in [name for name in FAMILIES if not arguments.only or name in arguments.only]:
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            model = make(name, folder)
        except Exception as error:
            print(name, 'FAILED', type(error).__name__, str(error)[-300:], flush=True)
            continue
        for way in FAMILIES[name][2]:
            try:
                if way == 'builder-f32-text' and arguments.builder:
                    build(arguments.builder, folder, way, 'f32')
                    text_alone(folder / way)
                elif way == 'builder-int4-floats' and arguments.builder:
                    build(arguments.builder, folder, way, 'int4')
                    in_floats(folder / way)
                elif way.startswith('builder-') and arguments.builder:
                    build(arguments.builder, folder, way, way.removeprefix('builder-'))
                elif way == 'mobius' and arguments.mobius:
                    mobius(arguments.mobius, folder, way)
                elif way == 'written':
                    written.write(model, folder)
                else:
                    continue
                print(name, way, 'ok', flush=True)
            except Exception as error:
                print(name, way, 'FAILED', type(error).__name__, str(error)[-600:], flush=True)
