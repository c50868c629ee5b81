"""Makes tiny random encoder-decoder models as ONNX graphs, each with the results of transformers.

    python scripts/onnx/matrix/encoder_decoder.py <folder> [--only whisper t5] [--builder <folder of onnxruntime_genai/models>]

Needs torch, transformers 4.57 and optimum-onnx. With the builder of onnxruntime-genai (see make.py) it also makes whisper-builder, with encoder.onnx, decoder.onnx and
genai_config.json. The others get encoder_model.onnx, decoder_model_merged.onnx, config.json; each model gets references.json (inputs, prompts, and the
greedy tokens of each prompt for each input) and references.safetensors (inputs, the encoder's outputs, and the logits of each prompt).
`KVTIDE_ENCODER_DECODERS=<folder> npx ava __test__/onnx/encoder-decoder.test.ts` runs them all.
"""
import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import onnx
import torch
import transformers
from optimum.exporters.onnx import main_export
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
import genai_builder

VOCAB = 72
TOKENS = 12
SPEECH, TEXT = 'automatic-speech-recognition-with-past', 'text2text-generation-with-past'
BART = dict(d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=40)
POSITIONS = dict(max_position_embeddings=64)
MOONSHINE = dict(hidden_size=16, intermediate_size=40, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=2,
                 decoder_num_attention_heads=2, tie_word_embeddings=False)
WHISPER = dict(BART, d_model=16, num_mel_bins=8, max_source_positions=12, max_target_positions=64, decoder_start_token_id=3, tie_word_embeddings=False,
               suppress_tokens=None, begin_suppress_tokens=None)
FAMILIES = {
    'whisper': ('Whisper', 'WhisperForConditionalGeneration', SPEECH, WHISPER),
    't5': ('T5', 'T5ForConditionalGeneration', TEXT,
           dict(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=2, num_heads=2, tie_word_embeddings=False, decoder_start_token_id=0)),
    # A head of its own: with that of the embeddings, each token would be followed by itself. The export of BART has none.
    'marian': ('Marian', 'MarianMTModel', TEXT, dict(BART, **POSITIONS, d_model=16, decoder_start_token_id=0, tie_word_embeddings=False)),
    'bart': ('Bart', 'BartForConditionalGeneration', TEXT, dict(BART, **POSITIONS, decoder_start_token_id=2)),
    # The builder gives cross caches for as many layers as the encoder has.
    'whisper-builder': ('Whisper', 'WhisperForConditionalGeneration', SPEECH, dict(WHISPER, encoder_layers=2)),
    'moonshine': ('Moonshine', 'MoonshineForConditionalGeneration', SPEECH, dict(MOONSHINE, **POSITIONS, decoder_start_token_id=1)),
}


# The models have neither tokenizers nor processors; the builder fails when it saves these, behind the graphs.
NO_PROCESSORS = '''none = lambda: type("T", (), dict(save_pretrained=lambda s, *a, **k: None, get_vocab=lambda s: {}, __len__=lambda s: 72))()
for kind in ("AutoTokenizer", "AutoProcessor", "AutoFeatureExtractor"):
    getattr(t, kind).from_pretrained = classmethod(lambda c, *a, **k: none())'''


def built(builder, work, folder):
    """Makes the graphs of onnxruntime-genai's builder. It declares an input of 3000 frames, whatever the model takes."""
    made = Path(work) / 'built'
    try:
        genai_builder.build(builder, Path(work) / 'hf', made, ['-p', 'fp32', '-e', 'cpu'], NO_PROCESSORS)
    except RuntimeError:
        if not (made / 'decoder.onnx').exists():
            raise
    for file in ('encoder.onnx', 'decoder.onnx'):
        graph = onnx.load(made / file)
        trim(graph.graph)
        if file == 'encoder.onnx':
            graph.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 24
        onnx.save(graph, folder / file)
    shutil.copy(made / 'genai_config.json', folder)


def make(name, folder, builder):
    kind, model_kind, task, sizes = FAMILIES[name]
    torch.manual_seed(11)
    config = getattr(transformers, f'{kind}Config')(vocab_size=VOCAB, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)
    model = getattr(transformers, model_kind)(config).float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() > 1:
                # The answer has to depend on what was encoded, on each token and on its position.
                weight.normal_(0, 0.9 if 'encoder_attn' in key or 'EncDec' in key or 'embed' in key or 'shared' in key or 'bias' in key else 0.35)
            elif 'norm' not in key:
                weight.normal_(0, 0.5)
    with tempfile.TemporaryDirectory() as work:
        model.save_pretrained(f'{work}/hf')
        if name == 'whisper-builder':
            built(builder, work, folder)
        else:
            # By default, Whisper is exported with 3000 frames.
            frames = dict(nb_max_frames=2 * config.max_source_positions) if name == 'whisper' else {}
            main_export(f'{work}/hf', output=f'{work}/onnx', task=task, do_validation=False, library_name='transformers', **frames)
            for file in ('encoder_model.onnx', 'decoder_model_merged.onnx'):
                graph = onnx.load(f'{work}/onnx/{file}')
                trim(graph.graph)
                onnx.save(graph, folder / file)
            shutil.copy(f'{work}/onnx/config.json', folder)
        # Positions that are computed are not saved: what was exported is what is loaded.
        model = getattr(transformers, model_kind).from_pretrained(f'{work}/hf').eval()
    refer(name, model, folder)


def trim(graph):
    """Removes text that takes half of a tiny graph."""
    graph.doc_string = ''
    del graph.value_info[:]
    for node in graph.node:
        node.doc_string = ''
        for attribute in node.attribute:
            if attribute.HasField('g'):
                trim(attribute.g)


def inputs_of(name, generator):
    """Inputs of the encoder: two of the same sizes, and for text a padded one."""
    if name.startswith('whisper'):
        return {key: dict(input_features=torch.randn(1, 8, 24, generator=generator)) for key in ('a', 'b')}
    if name == 'moonshine':
        return {key: dict(input_values=torch.randn(1, length, generator=generator)) for key, length in (('a', 4000), ('b', 5000))}
    text = {key: torch.randint(3, VOCAB, (1, length), generator=generator) for key, length in (('a', 9), ('b', 9), ('c', 7))}
    made = {key: dict(input_ids=ids, attention_mask=torch.ones_like(ids)) for key, ids in text.items()}
    made['c']['attention_mask'][0, 5:] = 0
    return made


def refer(name, model, folder):
    generator = torch.Generator().manual_seed(5)
    start = model.config.decoder_start_token_id
    prompts = {f'p{n}': [start, *torch.randint(3, VOCAB, (n - 1,), generator=generator).tolist()] for n in (1, 4, 17)}
    greedy, tensors, margin = {}, {}, 1e9
    for key, inputs in inputs_of(name, generator).items():
        with torch.no_grad():
            encoded = model.get_encoder()(**inputs)
            mask = {k: v for k, v in inputs.items() if k == 'attention_mask'}
            tensors[f'encoded.{key}'] = encoded[0].clone()
            for kind, value in inputs.items():
                kind = 'audio_features' if name == 'whisper-builder' else kind
                tensors[f'{kind}.{key}'] = value.float()
            for prompt, ids in prompts.items():
                ids, first = list(ids), len(ids)
                for _ in range(TOKENS):
                    logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids]), use_cache=False, **mask).logits[0]
                    if len(ids) == first:
                        tensors[f'logits.{key}.{prompt}'] = logits.clone()
                    best = logits[-1].topk(2).values
                    margin = min(margin, float((best[0] - best[1]) / logits[-1].std()))
                    ids.append(int(logits[-1].argmax()))
                greedy[f'{key}.{prompt}'] = ids[first:]
    save_file(tensors, folder / 'references.safetensors')
    (folder / 'references.json').write_text(json.dumps(dict(vocab_size=VOCAB, prompts=prompts, greedy=greedy)))
    print(name, f'least margin {margin:.4f} of the deviation of logits')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--only', nargs='*')
    parser.add_argument('--builder', type=Path)
    arguments = parser.parse_args()
    for name in arguments.only or [name for name in FAMILIES if arguments.builder or name != 'whisper-builder']:
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        make(name, folder, arguments.builder)
