"""Exports the demo's model as a folder of the Hub's form: configs, tokenizer with the chat template, onnx/model.onnx (f32), onnx/model_q4.onnx (int4).

    python scripts/demo-model/export.py <folder of train.py> --builder <folder of onnxruntime_genai/models> --to packages/serve/demo

The graphs come from the model builder of onnxruntime-genai 0.18.0 (with transformers 5.24.0 and onnx_ir in its folder). Their weights lie inside. In the
int4 graph, the embeddings and the head share their weights. At the end the script asks both graphs questions, and prints the answers.
"""
import argparse
import json
import random as randoms
import shutil
import sys
from pathlib import Path

import numpy
import onnx
import onnxruntime
from tokenizers import Tokenizer

sys.path.append(str(Path(__file__).resolve().parent.parent / 'onnx'))
import chats
import genai_builder
import village

FORMS = {
    'model': ['-p', 'fp32', '-e', 'cpu'],
    'model_q4': ['-p', 'int4', '-e', 'cpu', '--extra_options', 'block_size=32', 'accuracy_level=1'],
}
HERE = Path(__file__).resolve().parent


def written(file, value):
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n')


def configure(source, to):
    config = json.loads((source / 'config.json').read_text())
    for name in ('dtype', 'torch_dtype', 'transformers_version'):
        config.pop(name, None)
    written(to / 'config.json', config)
    end = config['eos_token_id']
    written(to / 'generation_config.json', dict(eos_token_id=end, pad_token_id=end, do_sample=False))
    # One line each for vocabulary and merges would be unreadable, one line for each entry is large: compact.
    (to / 'tokenizer.json').write_text(json.dumps(json.loads((source / 'tokenizer.json').read_text()), ensure_ascii=False, separators=(',', ':')) + '\n')
    written(to / 'tokenizer_config.json', dict(
        tokenizer_class='PreTrainedTokenizerFast', model_max_length=config['max_position_embeddings'], eos_token=chats.END, pad_token=chats.END,
        add_bos_token=False, clean_up_tokenization_spaces=False, chat_template=(HERE / 'chat_template.jinja').read_text()))


def fix_size(model, size):
    """Writes the head dimension into pasts and presents, where the builder leaves a name."""
    for tensor in [*model.graph.input, *model.graph.output]:
        for dimension in tensor.type.tensor_type.shape.dim:
            if dimension.dim_param == 'kv_cache_dim':
                dimension.dim_value = size


def export(source, builder, to):
    shutil.rmtree(to / 'onnx', ignore_errors=True)
    (to / 'onnx').mkdir(parents=True)
    configure(source, to)
    for name in ('tokenizer_config.json', 'generation_config.json'):
        shutil.copy(to / name, source / name)
    for name, options in FORMS.items():
        built = source.parent / name
        genai_builder.build(builder, source, built, options, '')
        model = onnx.load(built / 'model.onnx')
        fix_size(model, json.loads((source / 'config.json').read_text())['head_dim'])
        onnx.save(model, to / 'onnx' / f'{name}.onnx')
        print(name, (to / 'onnx' / f'{name}.onnx').stat().st_size, 'bytes')


class Answers:
    """Greedy answers of a graph."""

    def __init__(self, folder, name):
        self.session = onnxruntime.InferenceSession(str(folder / 'onnx' / f'{name}.onnx'), providers=['CPUExecutionProvider'])
        self.tokenizer = Tokenizer.from_file(str(folder / 'tokenizer.json'))
        self.end = self.tokenizer.token_to_id(chats.END)

    def answer(self, messages, most=160):
        ids, _ = chats.encoded(self.tokenizer, messages)
        ids.append(self.tokenizer.token_to_id(chats.ROLES['assistant']))
        past = {one.name: numpy.zeros([1, one.shape[1], 0, one.shape[3]], numpy.float32) for one in self.session.get_inputs() if one.name.startswith('past')}
        feed, answer = ids, []
        names = [one.name for one in self.session.get_outputs()]
        while len(answer) < most:
            length = len(ids) + len(answer)
            given = dict(input_ids=numpy.array([feed], numpy.int64), attention_mask=numpy.ones([1, length], numpy.int64), **past)
            outputs = dict(zip(names, self.session.run(None, given)))
            token = int(outputs['logits'][0, -1].argmax())
            if token == self.end:
                break
            answer.append(token)
            feed = [token]
            past = {name: outputs[name.replace('past_key_values', 'present')] for name in past}
        return self.tokenizer.decode(answer)


def show(to):
    random = randoms.Random(11)
    people = village.household(random, 28)
    system = dict(role='system', content=village.notes(random, people))
    asked = [(system, *village.ask(random, people)) for _ in range(60)]
    free = ['Hello!', 'Who are you?', 'What is a KV cache?', 'Why is the second answer faster?', 'Tell me a story about a fox and a lamp.', 'Tell me a story about a robot.', 'What is the capital of France?',
            'What do bees make?', 'tell me a story', 'How does prefix caching help my server?', 'Write a story about a dragon and a castle.', 'I like you.']
    asked += [(None, question, None) for question in free]
    sides = [Answers(to, name) for name in FORMS]
    right, same = [0, 0], 0
    for system, question, expected in asked:
        messages = [*([system] if system else []), dict(role='user', content=question)]
        answers = [side.answer(messages) for side in sides]
        same += answers[0] == answers[1]
        for at, answer in enumerate(answers):
            right[at] += answer == expected
        if expected is None or expected not in answers:
            print(f'\n> {question}\n  f32:  {answers[0]}' + ('' if answers[1] == answers[0] else f'\n  int4: {answers[1]}') + ('' if expected is None else f'\n  expected: {expected}'))
    print(f'\nright answers about notes, of 60: f32 {right[0]}, int4 {right[1]}; the same answers: {same} of {len(asked)}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--builder', type=Path)
    parser.add_argument('--to', type=Path, required=True)
    given = parser.parse_args()
    if given.builder:
        export(given.folder / 'hf', given.builder, given.to)
    show(given.to)
