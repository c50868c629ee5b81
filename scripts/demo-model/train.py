"""Trains the demo's model: a Llama of about a million weights that tells stories, explains caches and answers questions about its prompt.

    python scripts/demo-model/train.py <folder> [--seed 1] [--threads 2] [--device cpu]
    python scripts/demo-model/export.py <folder> --builder <folder of onnxruntime_genai/models> --to packages/serve/demo

Needs torch 2.8.0, transformers 4.57.6 and tokenizers 0.22.2 (scripts/onnx/python.mjs makes such an environment). All text comes from the
grammars beside this file, so there is no data set, and the text is under the project's own licence. The chats get longer in four stages; the last
steps round the weights of the forward pass to int4, as MatMulNBits stores them, so that the int4 graph answers like the f32 one.

The number of steps follows from a count of tokens, not from the clock: the same seed gives the same chats in the same order. Two cores train 8,000 to 9,900 tokens a
second, so a whole run should take about 23 minutes there; none was done. The weights in packages/serve/demo come from the same recipe on an H100, in 4.5 minutes.
"""
import argparse
import json
import math
import random as randoms
import time
from pathlib import Path

import jinja2
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy

import chats
import village
from quantized import rounded

VOCABULARY = 1024
CONTEXT = 2048
SHAPE = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
# Length of a chat, chats in a step, share of all tokens, people in the notes. Few people come first: the model learns to copy before it learns to choose. Steps are small:
# their number matters more than their size.
STAGES = [(128, 32, 0.24, (1, 2)), (256, 16, 0.36, (2, 5)), (768, 6, 0.22, (4, 14)), (CONTEXT, 2, 0.18, (16, 36))]
TOKENS = 12_000_000
ROUNDED = 0.15


def make_tokenizer(random):
    """Byte-level BPE, so that any text has ids; digits stand alone."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    texts = (text for _ in range(6000) for text in chats.text(random, (2, 5), 12))
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(chats.MARKS), special_tokens=chats.SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    made.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in chats.MARKS])
    if made.get_vocab_size() != VOCABULARY:
        raise RuntimeError(f'the tokenizer has {made.get_vocab_size()} ids, expected {VOCABULARY}')
    return made


def check_template(tokenizer, random):
    """Compares the ids of the template's text with those that training sees."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters['tojson'] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((Path(__file__).parent / 'chat_template.jinja').read_text())
    for _ in range(200):
        chat = chats.Chat(random, (2, 3))
        messages = [*chat.begin, *chat.more()]
        tools = chat.tools or None
        given = [dict(message) for message in messages]
        if tools and given[0]['role'] == 'system':
            kept = given[0]['content'].split('You may call')[0].rstrip('\n')
            given = [*([dict(role='system', content=kept)] if kept else []), *given[1:]]
        ids, _ = chats.encoded(tokenizer, messages)
        rendered = template.render(messages=given, tools=tools, add_generation_prompt=False)
        if tokenizer.encode(rendered).ids != ids:
            raise RuntimeError(f'the template differs from the training text: {rendered!r} and {tokenizer.decode(ids, skip_special_tokens=False)!r}')


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal: five steps of a quintic Newton-Schulz iteration. For matrices alone."""

    def __init__(self, matrices, rate):
        super().__init__(matrices, dict(lr=rate))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for matrix in group['params']:
                momentum = self.state[matrix].setdefault('momentum', torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 0.05)
                update = matrix.grad.lerp(momentum, 0.95)
                tall = update.size(0) > update.size(1)
                update = update.T if tall else update
                update = update / (update.norm() + 1e-7)
                for _ in range(5):
                    square = update @ update.T
                    update = 3.4445 * update + (-4.7750 * square + 2.0315 * square @ square) @ update
                update = update.T if tall else update
                matrix.mul_(1 - group['lr'] * 0.05).add_(update, alpha=-group['lr'] * math.sqrt(max(1, matrix.size(0) / matrix.size(1))))


def logits_of(model, ids, weights, is_rounded):
    """Returns the logits, and the weights to put back after the backward pass: with `is_rounded`, the model has those of int4 meanwhile. Gradients pass through the rounding unchanged."""
    kept = [weight.data for weight in weights]
    if is_rounded:
        for weight in weights:
            weight.data = rounded(weight.data)
    return model(input_ids=ids, use_cache=False).logits.float(), kept


def measure(model, tokenizer, random, length, people, count=48):
    """Returns, for each kind of question about notes, the share of answers whose every token is the most probable one."""
    right = {}
    for _ in range(count):
        folks = village.household(random, random.randint(*people))
        question_of = lambda kind: village.ask(random, folks, kind)
        for kind in ('job', 'home', 'called', 'plays', 'who-job', 'who-pet', 'unknown'):
            question, answer = question_of(kind)
            ids, weights = chats.encoded(tokenizer, [dict(role='system', content=village.notes(random, folks)), *chats.turn(question, answer)])
            if len(ids) > length:
                continue
            with torch.no_grad():
                best = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].argmax(-1).tolist()
            right.setdefault(kind, []).append(all(best[at - 1] == ids[at] for at, weight in enumerate(weights) if weight == 1.0))
    return {kind: round(sum(all_) / len(all_), 2) for kind, all_ in right.items()}


def train(arguments):
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    random = randoms.Random(arguments.seed)
    tokenizer = make_tokenizer(random)
    check_template(tokenizer, random)
    to = Path(arguments.folder) / 'hf'
    to.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(chats.END)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SHAPE, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=10000.0,
        bos_token_id=None, eos_token_id=end, pad_token_id=end, attn_implementation='sdpa'))
    device = arguments.device
    model.to(device)
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and 'embed' not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or 'embed' in name]
    # The embeddings are the head as well, in int4 too.
    quantized = [*matrices, model.lm_head.weight]
    print(f'{sum(weight.numel() for weight in model.parameters()):,} weights', flush=True)
    optimizers = [Muon(matrices, 0.015), torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)]
    rates = [optimizer.param_groups[0]['lr'] for optimizer in optimizers]
    steps = [stage for stage in STAGES for _ in range(round(arguments.tokens * stage[2] / (stage[0] * stage[1])))]
    started, seen, smooth = time.time(), 0, None
    for at, (length, batch, _, people) in enumerate(steps):
        drawn = [chats.filled(random, tokenizer, length + 1, people) for _ in range(batch)]
        ids = torch.tensor([ids for ids, _ in drawn], device=device)
        weights = torch.tensor([weights for _, weights in drawn], device=device)[:, 1:]
        logits, kept = logits_of(model, ids[:, :-1], quantized, at >= len(steps) * (1 - ROUNDED))
        losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction='none').view_as(weights)
        (losses * weights).sum().div(weights.sum()).backward()
        for weight, data in zip(quantized, kept):
            weight.data = data
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        # Warms up for 40 steps, holds, and falls to zero over the last 45 of 100.
        share = min(1, (at + 1) / 40, (1 - at / len(steps)) / 0.45)
        for optimizer, rate in zip(optimizers, rates):
            optimizer.param_groups[0]['lr'] = rate * share
            optimizer.step()
        model.zero_grad(set_to_none=True)
        seen += ids.numel()
        answers = float(((losses * (weights == 1)).sum() / (weights == 1).sum()).detach())
        smooth = answers if smooth is None else 0.98 * smooth + 0.02 * answers
        if at % 100 == 0 or at + 1 == len(steps):
            print(f'step {at}/{len(steps)}  length {length}  loss of answers {smooth:.3f}  {seen / (time.time() - started):,.0f} tokens/s  {time.time() - started:.0f} s', flush=True)
        if at and at % 400 == 0:
            print('   right:', measure(model, tokenizer, randoms.Random(99), CONTEXT, people, 12), flush=True)
            model.save_pretrained(to)
            tokenizer.save(str(to / 'tokenizer.json'))
    model.save_pretrained(to)
    tokenizer.save(str(to / 'tokenizer.json'))
    for people in ((3, 5), (12, 14), (26, 30)):
        print(f'{people} people, right:', measure(model, tokenizer, randoms.Random(7), CONTEXT, people), flush=True)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--tokens', type=int, default=TOKENS)
    train(parser.parse_args())
