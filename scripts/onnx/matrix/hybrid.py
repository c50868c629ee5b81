"""Makes tiny random hybrid models as ONNX graphs, each with the greedy tokens of transformers: layers with a state beside layers with attention.

    PYTHONPATH=<transformers 5> python scripts/onnx/matrix/hybrid.py <folder> [--only lfm2] [--builder <folder of onnxruntime_genai/models>] [--mobius <folders>]

The whole script needs transformers 5, which alone has all of these families. `written` graphs are those of written.py, for families that no exporter writes.
Each model gets a folder in the form of make.py, so that run.mjs runs them all.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

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
             ['builder-f32', 'builder-f16', 'builder-int4', 'mobius']),
    'qwen3-next': ('Qwen3NextConfig', dict(DELTA, **EXPERTS), ['mobius']),
    'qwen3_5-text': ('Qwen3_5TextConfig', dict(DELTA), ['builder-f32', 'builder-f16', 'mobius']),
    'granite-hybrid': ('GraniteMoeHybridConfig', dict(MAMBA, layer_types=['mamba', 'attention', 'mamba', 'mamba'], num_local_experts=0, shared_intermediate_size=96,
                                                      position_embedding_type=None, attention_multiplier=0.2, embedding_multiplier=3.0,
                                                      residual_multiplier=0.5, logits_scaling=2.0), ['mobius']),
    'bamba': ('BambaConfig', dict(MAMBA, attn_layer_indices=[1]), ['mobius']),
    'falcon-h1': ('FalconH1Config', dict(MAMBA, mamba_d_ssm=128), ['mobius']),
    'mamba': ('MambaConfig', dict(state_size=8, conv_kernel=4, expand=2, time_step_rank=4), ['mobius']),
    'mamba2': ('Mamba2Config', dict(num_heads=8, head_dim=16, state_size=16, n_groups=1, conv_kernel=4, expand=2, chunk_size=16), ['mobius']),
}

GREEDY = 12


def make(name, folder):
    kind, extra, _ = FAMILIES[name]
    torch.manual_seed(11)
    config = getattr(transformers, kind)(**{**TINY, **extra})
    config._attn_implementation = 'eager'
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager').float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if 'norm' in key or key.endswith(('A_log', 'dt_bias', '.D')):
                continue
            if weight.dim() > 1:
                weight.normal_(0, 0.5 if 'embed' in key or 'conv' in key else 0.3)
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


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--only', nargs='*')
    parser.add_argument('--builder', type=Path)
    parser.add_argument('--mobius', type=Path, nargs='*', help='folders with mobius-onnx and transformers 5')
    arguments = parser.parse_args()
    for name in arguments.only or FAMILIES:
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            model = make(name, folder)
        except Exception as error:
            print(name, 'FAILED', type(error).__name__, str(error)[-300:], flush=True)
            continue
        for way in FAMILIES[name][2]:
            try:
                if way.startswith('builder-') and arguments.builder:
                    build(arguments.builder, folder, way, way.removeprefix('builder-'))
                elif way == 'mobius' and arguments.mobius:
                    mobius(arguments.mobius, folder, way)
                else:
                    continue
                print(name, way, 'ok', flush=True)
            except Exception as error:
                print(name, way, 'FAILED', type(error).__name__, str(error)[-600:], flush=True)
