"""Chats of a given length in tokens, with the weight of each token in the loss. The chat template writes the same form (train.py compares them)."""
import json

import stories
import talk
import tools
import village

ROLES = {'system': '<|system|>', 'user': '<|user|>', 'assistant': '<|assistant|>', 'tool': '<|tool|>'}
END = '<|end|>'
SPECIAL = [END, *ROLES.values()]
MARKS = ['<tool_call>', '</tool_call>']
# An answer is what the model learns; questions and notes are there to be read.
WEIGHTS = {'system': 0.15, 'user': 0.15, 'assistant': 1.0, 'tool': 0.05}


def described(system, offered):
    """The system message with tools, as the template writes it."""
    listed = '\n'.join(json.dumps(tool, ensure_ascii=False) for tool in offered)
    words = f'You may call these tools:\n<tools>\n{listed}\n</tools>\nA call looks like this: <tool_call>\n{{"name": "...", "arguments": {{}}}}\n</tool_call>'
    return f'{system}\n{words}' if system else words


def turn(question, answer):
    return [dict(role='user', content=question), dict(role='assistant', content=answer)]


class Chat:
    """Messages that grow, turn by turn. `kind` chooses what they are about."""

    def __init__(self, random, people):
        self.random = random
        self.people, self.tools = [], []
        kind = random.random()
        plain = random.choice(talk.DEFAULTS) if random.random() < 0.7 else ''
        if kind < 0.6:
            self.people = village.household(random, random.randint(*people))
            system = village.notes(random, self.people)
        elif kind < 0.72:
            self.tools = tools.some(random)
            system = described(plain, self.tools)
        else:
            system = plain
        self.begin = [dict(role='system', content=system)] if system else []

    def more(self):
        """Returns the next messages: a question with its answer, or with a call and its result between them."""
        random = self.random
        if self.people and random.random() < 0.88:
            return turn(*village.ask(random, self.people))
        if self.tools and random.random() < 0.6:
            return tools.ask(random, self.tools)
        if self.people or self.tools:
            return turn(*talk.memorised(random))
        return turn(*random.choices([talk.memorised, stories.ask, talk.other], [45, 45, 10])[0](random))


def text(random, people, turns):
    """Returns the texts of a chat, for the tokenizer."""
    chat = Chat(random, people)
    messages = [*chat.begin, *(message for _ in range(turns) for message in chat.more())]
    return [message['content'] for message in messages]


def encoded(tokenizer, messages):
    ids, weights = [], []
    for message, encoding in zip(messages, tokenizer.encode_batch([message['content'] for message in messages])):
        weight = WEIGHTS[message['role']]
        ids += [tokenizer.token_to_id(ROLES[message['role']]), *encoding.ids, tokenizer.token_to_id(END)]
        # A role is given, never predicted; the end is a part of the message.
        weights += [0.0, *[weight] * len(encoding.ids), weight]
    return ids, weights


def filled(random, tokenizer, length, people):
    """Returns a chat of `length` ids and weights. The last turn may be cut; a chat that starts too long is drawn again."""
    while True:
        chat = Chat(random, people)
        ids, weights = encoded(tokenizer, chat.begin)
        if len(ids) < length - 40:
            break
    while len(ids) < length:
        more = encoded(tokenizer, [message for _ in range(4) for message in chat.more()])
        ids, weights = ids + more[0], weights + more[1]
    return ids[:length], weights[:length]
