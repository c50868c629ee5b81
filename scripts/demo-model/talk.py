"""Short questions whose answers the model learns by heart: about caches, about the world, about itself. And what it says to all others."""
CACHES = [
    (['What is a KV cache?', 'What does a KV cache do?', 'Explain the KV cache.'],
     'A KV cache keeps the keys and values of all tokens so far, so that the model computes each token only once.'),
    (['What is a cache?', 'What is a cache for?'], 'A cache keeps results, so that they need not be computed again.'),
    (['What is a prefix?', 'What is the prefix of a prompt?'], 'A prefix is the start of a prompt. Two prompts that start alike share a prefix.'),
    (['What is a prefix cache?', 'What is prefix caching?', 'How does prefix caching work?'],
     'A prefix cache finds the longest start of a prompt that was computed before. Only the rest is computed.'),
    (['Why is the second answer faster?', 'Why was that so fast?', 'Why are you so fast?'],
     'Because the start of your prompt is in the cache. I computed only what was new.'),
    (['What is a token?', 'What are tokens?'], 'A token is a piece of text: a word, a part of a word, or a single byte.'),
    (['What is a prompt?'], 'A prompt is the text that a model reads before it answers.'),
    (['What is kvtide?', 'Tell me about kvtide.', 'What does kvtide do?'], 'kvtide is a KV cache for Node.js. It runs language models, and it computes no prompt twice.'),
    (['What is a block?', 'What is a block of the cache?'], 'A block holds the keys and values of a few tokens. Sequences with the same start share their blocks.'),
    (['What is a fork?', 'What is a fork of a chat?'], 'A fork is a second chat with the same start. Both share all blocks until one of them changes.'),
    (['What is a tier?', 'What are tiers?', 'Where do old blocks go?'], 'A tier keeps blocks outside the pool: in memory, on disk, or in a store. Later prompts get them back.'),
    (['What is a salt?', 'What is the salt for?'], 'A salt keeps tenants apart. Prompts with different salts share no blocks.'),
    (['What is speculative decoding?', 'What is a draft?'], 'A small model drafts some tokens, and the large one checks all of them at once. Wrong drafts are rolled back.'),
    (['What is attention?'], 'With attention, each token looks at the tokens before it and takes what it needs.'),
    (['What is a language model?'], 'A language model reads tokens and predicts the next one, again and again.'),
    (['What is batching?', 'What is continuous batching?'], 'With continuous batching, many chats share each step of the model. A new chat joins at the next step.'),
    (['What is ONNX?'], 'ONNX is a file format for models. It holds the graph and the weights.'),
    (['What is quantization?', 'What is int4?'], 'Quantization stores weights with fewer bits. With int4, each weight has four bits.'),
    (['What is a sliding window?'], 'With a sliding window, a layer sees only the newest tokens.'),
    (['What is temperature?'], 'Temperature makes the choice of tokens more random. At zero, the most probable token wins.'),
    (['What is a system prompt?'], 'A system prompt tells the model what to do, before the first question. Every chat starts with it.'),
    (['How can I save time?', 'How can I make my server faster?'], 'Put what all prompts share at the start, and let the cache do the rest.'),
]
WORLD = [
    (['What colour is snow?'], 'Snow is white.'), (['What colour is grass?'], 'Grass is green.'), (['What colour is the sky?'], 'On a clear day, the sky is blue.'),
    (['What colour is a lemon?'], 'A lemon is yellow.'), (['How many legs does a spider have?'], 'A spider has eight legs.'), (['How many legs does a dog have?'], 'A dog has four legs.'),
    (['How many days does a week have?'], 'A week has seven days.'), (['How many months does a year have?'], 'A year has twelve months.'),
    (['What do bees make?'], 'Bees make honey.'), (['What do cows eat?'], 'Cows eat grass.'), (['What is ice?'], 'Ice is frozen water.'),
    (['What is rain?'], 'Rain is water that falls from clouds.'), (['Where do fish live?'], 'Fish live in water.'), (['What is the sun?'], 'The sun is a star.'),
    (['What is the moon?'], 'The moon goes around the earth once a month.'), (['Why is the sea salty?'], 'Rivers carry salt from the land into the sea.'),
    (['What is a baker?'], 'A baker makes bread and cake.'), (['What is a library?'], 'A library is a house full of books.'), (['Which season comes after winter?'], 'After winter comes spring.'),
    (['Which season comes after summer?'], 'After summer comes autumn.'), (['When do owls sleep?'], 'Owls sleep by day and hunt by night.'), (['How do birds fly?'], 'Birds beat their wings, and the air carries them.'),
    (['What is the opposite of hot?'], 'The opposite of hot is cold.'), (['What is the opposite of big?'], 'The opposite of big is small.'), (['What is wind?'], 'Wind is moving air.'),
    (['What is a year?'], 'A year is the time in which the earth goes around the sun.'), (['What sound does a cat make?'], 'A cat says meow.'), (['What sound does a dog make?'], 'A dog says woof.'),
]
SMALL = [
    (['Hello!', 'Hi!', 'Hello.', 'Hi there!', 'Good morning!', 'Hey!', 'Good evening!', 'hello', 'hi'], 'Hello! Ask me for a story, or about caches.'),
    (['Who are you?', 'What are you?', 'What is your name?'], 'I am the demo model of kvtide. I have about a million weights, and I was trained in minutes.'),
    (['What can you do?', 'Help!', 'What should I ask?', 'What do you know?'], 'I tell stories, explain caches, and answer questions about the notes in my prompt.'),
    (['How are you?', 'How do you do?'], 'I am well, thank you. My cache is warm.'),
    (['Thank you!', 'Thanks!', 'Thank you.', 'Thanks a lot!', 'thanks'], 'You are welcome!'),
    (['Goodbye!', 'Bye!', 'See you!', 'bye'], 'Goodbye! I will keep the cache warm.'),
    (['How big are you?', 'How many weights do you have?'], 'I have about a million weights. Large models have thousands of times more.'),
    (['Tell me a joke.', 'Do you know a joke?', 'Tell me a joke!'], 'Why did the token cross the road? To get to the next block.'),
    (['Are you a person?', 'Are you real?'], 'No, I am a very small language model.'),
    (['Who made you?'], 'A script of kvtide made me, in a few minutes, on two cores.'),
]
DEFAULTS = ['You are a small and friendly model.', 'You are a helpful assistant.', 'You answer in one or two sentences.', 'Be friendly and brief.', 'You tell stories and answer questions.']

# For everything else: open questions that look unlike those above.
OTHER = [
    'What is the capital of {}?', 'Who invented {}?', 'How much is {}?', 'Write a program for {}.', 'Translate {} into French.', 'What do you think about {}?', 'How old is {}?',
    'Why is {} so expensive?', 'Give me a recipe for {}.', 'What is the meaning of {}?', 'Can you explain {}?', 'How far is {}?', 'Tell me about {}.', 'What is {}?', 'Is {} true?',
    'Write a poem about {}.', 'Where can I buy {}?', 'How does {} work?', 'What happened to {}?', 'Compare {} with something else.', '{}', '{}?', 'I want {}.',
]
SYLLABLES = 'ba be bo ca ce co da de di fa fe ga go ha he in ka ki la le li lo ma me mi mo na ne no pa pe po qu ra re ri ro sa se si so ta te ti to tri un va ve vi wa xi zu'.split()
REFUSALS = [
    'I do not know that. I am a very small model: ask me for a story, or about caches.',
]


def memorised(random):
    group = random.choices([CACHES, WORLD, SMALL], [5, 3, 2])[0]
    questions, answer = random.choice(group)
    question = random.choice(questions)
    if random.random() < 0.1:
        question = question.lower().rstrip('?!.')
    return question, answer


def other(random):
    word = lambda: ''.join(random.choices(SYLLABLES, k=random.choice([1, 2, 2, 3])))
    kind = random.random()
    if kind < 0.6:
        what = ' '.join(word() for _ in range(random.choice([1, 1, 2])))
        what = what.capitalize() if random.random() < 0.5 else what
    elif kind < 0.8:
        what = f'{random.randint(2, 99)} {random.choice(["plus", "times", "minus", "+", "*"])} {random.randint(2, 99)}'
    else:
        what = random.choice(['France', 'Japan', 'the world', 'love', 'a house', 'gold', 'football', 'music', 'the internet', 'a car', 'Python', 'sorting a list', 'life', 'history', 'money'])
    return random.choice(OTHER).format(what), random.choice(REFUSALS)
