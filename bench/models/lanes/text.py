"""Prints token ids of a text as JSON: contexts of one length, spread over the text. Arguments: tokenizer.json, contexts, length, first id or -1.

The text is that of Python's help, in English: the topics of pydoc, from the language reference, under the licence of Python (PSF-2.0).
"""
import json
import sys
from pydoc_data.topics import topics

from tokenizers import Tokenizer

file, contexts, length, first = sys.argv[1], *map(int, sys.argv[2:])
# Some topics have the same text as others.
text = '\n'.join(dict.fromkeys(topics[name] for name in sorted(topics)))
ids = Tokenizer.from_file(file).encode(text, add_special_tokens=False).ids
start = [] if first < 0 else [first]
own = length - len(start)
apart = len(ids) // contexts
if apart < own:
    sys.exit(f'the text has {len(ids)} tokens, expected {contexts * own}')
print(json.dumps([start + ids[place * apart :][:own] for place in range(contexts)]))
