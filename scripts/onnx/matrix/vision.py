"""Makes tiny random models that see images as ONNX graphs, each with the results of transformers.

    python scripts/onnx/matrix/vision.py <folder>                 qwen2-vl: three rows of positions, in the form of transformers.js
    python scripts/onnx/matrix/vision.py <folder> --builder <..>  llama as well, with the builder of onnxruntime-genai (see make.py)

A folder has the decoder, the model of its embeddings, `references.json` with prompts, the images in them, and greedy tokens, and
`references.safetensors` with the rows of the images. Images of llama are random rows, since it has no tower.
"""
import argparse
import json
import shutil
from pathlib import Path

import onnx
import torch
import transformers
from onnx import TensorProto, helper
from safetensors.torch import save_file

from make import FAMILIES, TINY, VOCAB, build

IMAGE = 5
GREEDY = 12
# Rows, height and width of the images in patches; the tower merges 2 x 2 of them.
IMAGES = dict(a=(1, 4, 6), b=(1, 4, 6), c=(2, 8, 4))


def qwen2_vl():
    text = dict(TINY, head_dim=None, num_attention_heads=2, num_key_value_heads=1, intermediate_size=40,
                rope_scaling=dict(type='mrope', mrope_section=[2, 3, 3]), rope_theta=10000.0, tie_word_embeddings=False)
    vision = dict(depth=1, embed_dim=16, hidden_size=32, num_heads=2, mlp_ratio=2, in_channels=3, patch_size=2, spatial_merge_size=2, temporal_patch_size=1)
    config = transformers.Qwen2VLConfig(text_config={key: value for key, value in text.items() if value is not None}, vision_config=vision,
                                        image_token_id=IMAGE, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8)
    config._attn_implementation = 'eager'
    return transformers.Qwen2VLForConditionalGeneration._from_config(config, attn_implementation='eager').float().eval()


def randomised(model):
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.5 if 'embed' in key else 0.3)
            elif 'norm' not in key:
                weight.normal_(0, 0.5)
    return model


def prompts(grids):
    """Text alone, and text around images. A prompt is a list of ids and names of images."""
    generator = torch.Generator().manual_seed(5)
    text = lambda count: torch.randint(9, VOCAB, (count,), generator=generator).tolist()
    start, question, other = text(5), text(6), text(4)
    parts = dict(text=[*text(23)], a=[*start, 7, 'a', 8, *question], b=[*start, 7, 'b', 8, *question], again=[*start, 7, 'a', 8, *other],
                 two=[*start, 7, 'a', 8, *question, 7, 'c', 8, *other], first=[7, 'c', *other])
    rows = lambda name: grids[name][0] * grids[name][1] * grids[name][2]
    made = {}
    for name, items in parts.items():
        ids, images = [], []
        for item in items:
            if isinstance(item, str):
                images.append(dict(image=item, start=len(ids), grid=list(grids[item])))
                ids += [IMAGE] * rows(item)
            else:
                ids.append(item)
        made[name] = dict(ids=ids, images=images)
    return made


def refer(folder, made, tensors, logits_of, positions_of=lambda ids, images: None):
    greedy, positions = {}, {}
    for name, prompt in made.items():
        ids = list(prompt['ids'])
        positions[name] = positions_of(ids, prompt['images'])
        with torch.no_grad():
            for _ in range(GREEDY):
                ids.append(int(logits_of(ids, prompt['images'])[-1].argmax()))
        greedy[name] = ids[len(prompt['ids']):]
    found = {name: prompt | dict(greedy=greedy[name], positions=positions[name]) for name, prompt in made.items()}
    (folder / 'references.json').write_text(json.dumps(found))
    save_file({key: value.clone().contiguous() for key, value in tensors.items()}, folder / 'references.safetensors')


def stripped(path):
    """Drops paths and lines of Python from a graph."""
    graph = onnx.load(path)
    for thing in (graph, graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.input, *graph.graph.output, *graph.graph.initializer):
        del thing.metadata_props[:]
        thing.doc_string = ''
    onnx.save(graph, path)


class Decoder(torch.nn.Module):
    """A decoder as transformers.js has it: embeddings, mask and positions in, logits and presents out."""

    def __init__(self, model):
        super().__init__()
        self.text, self.head = model.model.language_model, model.lm_head

    def forward(self, inputs_embeds, attention_mask, position_ids, *pasts):
        cache = transformers.DynamicCache.from_legacy_cache(tuple(zip(pasts[0::2], pasts[1::2])))
        new = inputs_embeds.shape[1]
        keys = torch.arange(attention_mask.shape[1])
        queries = keys[attention_mask.shape[1] - new:]
        seen = (keys[None, None, None, :] <= queries[None, None, :, None]) & attention_mask.bool()[:, None, None, :]
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        out = self.text(inputs_embeds=inputs_embeds, attention_mask=mask, position_ids=position_ids, past_key_values=cache, use_cache=True)
        flat = [tensor for layer in out.past_key_values.to_legacy_cache() for tensor in layer]
        return (self.head(out.last_hidden_state), *flat)


def export(model, folder, rows):
    """Exports the decoder and the model of its embeddings. `rows` is the number of rows of positions."""
    config = model.config.get_text_config()
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    dim, width = config.hidden_size // config.num_attention_heads, config.hidden_size
    pasts = [torch.zeros(2, heads, 4, dim) for _ in range(2 * layers)]
    names = [f'past_key_values.{layer}.{kind}' for layer in range(layers) for kind in ('key', 'value')]
    presents = [name.replace('past_key_values', 'present') for name in names]
    axes = {'inputs_embeds': {0: 'batch_size', 1: 'sequence_length'}, 'attention_mask': {0: 'batch_size', 1: 'total_sequence_length'},
            'position_ids': {1: 'batch_size', 2: 'sequence_length'}, 'logits': {0: 'batch_size', 1: 'sequence_length'},
            **{name: {0: 'batch_size', 2: 'past_sequence_length'} for name in names},
            **{name: {0: 'batch_size', 2: 'total_sequence_length'} for name in presents}}
    given = (torch.zeros(2, 3, width), torch.ones(2, 7, dtype=torch.long), torch.arange(4, 7).expand(rows, 2, 3).clone(), *pasts)
    path = str(folder / 'decoder_model_merged.onnx')
    torch.onnx.export(Decoder(model), given, path, dynamo=False, opset_version=17, do_constant_folding=True,
                      input_names=['inputs_embeds', 'attention_mask', 'position_ids', *names], output_names=['logits', *presents], dynamic_axes=axes)
    stripped(path)
    embed(model.get_input_embeddings().weight, folder / 'embed_tokens.onnx')


def embed(weight, path):
    """A model of embeddings: rows of a table."""
    table = helper.make_tensor('embed_tokens.weight', TensorProto.FLOAT, weight.shape, weight.detach().float().flatten().tolist())
    ids = helper.make_tensor_value_info('input_ids', TensorProto.INT64, ['batch_size', 'sequence_length'])
    out = helper.make_tensor_value_info('inputs_embeds', TensorProto.FLOAT, ['batch_size', 'sequence_length', weight.shape[1]])
    graph = helper.make_graph([helper.make_node('Gather', ['embed_tokens.weight', 'input_ids'], ['inputs_embeds'], '/embed')], 'embeddings', [ids], [out], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8), path)


def embedding_with_images(weight, path):
    """A model of embeddings as onnxruntime-genai has it: the rows of images replace those of their token."""
    width = weight.shape[1]
    floats = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    ids = helper.make_tensor_value_info('input_ids', TensorProto.INT64, ['batch_size', 'sequence_length'])
    constant = lambda name, value: helper.make_tensor(name, TensorProto.INT64, [], [value])
    nodes = [helper.make_node('Gather', ['weight', 'input_ids'], ['rows'], '/embed'), helper.make_node('Equal', ['input_ids', 'image'], ['is_image'], '/is'),
             helper.make_node('NonZero', ['is_image'], ['places'], '/places'), helper.make_node('Transpose', ['places'], ['turned'], '/turned'),
             helper.make_node('ScatterND', ['rows', 'turned', 'image_features'], ['inputs_embeds'], '/scatter')]
    table = helper.make_tensor('weight', TensorProto.FLOAT, weight.shape, weight.detach().float().flatten().tolist())
    graph = helper.make_graph(nodes, 'embeddings', [ids, floats('image_features', ['num_image_tokens', width])],
                              [floats('inputs_embeds', ['batch_size', 'sequence_length', width])], [table, constant('image', IMAGE)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8), path)


def make_qwen2_vl(folder):
    torch.manual_seed(11)
    model = randomised(qwen2_vl())
    generator = torch.Generator().manual_seed(6)
    pixels = {name: torch.randn(t * h * w, 12, generator=generator) for name, (t, h, w) in IMAGES.items()}
    grid = lambda images: torch.tensor([IMAGES[image['image']] for image in images])
    given = lambda images: dict(pixel_values=torch.cat([pixels[image['image']] for image in images]), image_grid_thw=grid(images)) if images else {}
    with torch.no_grad():
        rows = {name: model.model.visual(pixels[name], torch.tensor([IMAGES[name]])) for name in IMAGES}
    made = prompts({name: (t, h // 2, w // 2) for name, (t, h, w) in IMAGES.items()})
    index = lambda ids, images: model.model.get_rope_index(torch.tensor([ids]), grid(images) if images else None)[0][:, 0]

    def logits(ids, images):
        # A generated token may be that of images, so only the prompt goes through the whole model: to check the rest.
        prompt = next(made[name]['ids'] for name in made if made[name]['images'] == images and ids[:len(made[name]['ids'])] == made[name]['ids'])
        embeds = model.get_input_embeddings()(torch.tensor([ids])).clone()
        for image in images:
            embeds[0, image['start']:image['start'] + len(rows[image['image']])] = rows[image['image']]
        positions = index(prompt, images)
        positions = torch.cat([positions, positions.max() + 1 + torch.arange(len(ids) - len(prompt)).expand(3, -1)], 1)
        found = model(inputs_embeds=embeds, position_ids=positions[:, None], use_cache=False).logits[0]
        if len(ids) == len(prompt):
            torch.testing.assert_close(found, model(input_ids=torch.tensor([ids]), use_cache=False, **given(images)).logits[0])
        return found

    refer(folder, made, rows, logits, lambda ids, images: index(ids, images).tolist())
    export(model, folder, 3)


def make_llama(folder, builder):
    torch.manual_seed(12)
    kind, extra = FAMILIES['llama']
    config = getattr(transformers, kind)(**{**TINY, **extra, 'num_attention_heads': 2, 'num_key_value_heads': 1, 'intermediate_size': 40})
    model = randomised(transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager').float().eval())
    model.save_pretrained(folder / 'hf')
    generator = torch.Generator().manual_seed(7)
    rows = {name: torch.randn(6 if name != 'c' else 9, config.hidden_size, generator=generator) / 2 for name in IMAGES}

    def logits(ids, images):
        embeds = model.get_input_embeddings()(torch.tensor([ids])).clone()
        for image in images:
            own = rows[image['image']]
            embeds[0, image['start']:image['start'] + len(own)] = own
        return model(inputs_embeds=embeds, use_cache=False).logits[0]

    refer(folder, prompts({name: (1, 1, len(own)) for name, own in rows.items()}), rows, logits)
    build(builder, folder, 'built', 'embeds')
    for file in ('model.onnx', 'model.onnx.data', 'genai_config.json'):
        shutil.copy(folder / 'built' / file, folder / file)
    embedding_with_images(model.get_input_embeddings().weight, folder / 'embedding.onnx')
    for made in ('built', 'hf', 'cache'):
        shutil.rmtree(folder / made, ignore_errors=True)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--builder', type=Path)
    arguments = parser.parse_args()
    for name in ('qwen2-vl', 'llama') if arguments.builder else ('qwen2-vl',):
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        make_qwen2_vl(folder) if name == 'qwen2-vl' else make_llama(folder, arguments.builder)
