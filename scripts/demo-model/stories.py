"""Short stories from a grammar: a hero, a place, a trouble, a friend, an end."""
HEROES = ['fox', 'bear', 'mouse', 'rabbit', 'owl', 'frog', 'hedgehog', 'squirrel', 'cat', 'dog', 'duck', 'goat', 'girl', 'boy', 'giant', 'dragon', 'robot', 'king', 'queen', 'sailor', 'wizard', 'snail']
ADJECTIVES = ['little', 'old', 'young', 'brave', 'shy', 'clever', 'lazy', 'kind', 'curious', 'hungry', 'lonely', 'cheerful']
PLACES = {
    'forest': 'in a deep forest', 'river': 'beside a wide river', 'mountain': 'at the foot of a mountain', 'sea': 'near the sea', 'garden': 'in a wild garden', 'castle': 'in an old castle',
    'village': 'in a quiet village', 'island': 'on a green island', 'farm': 'on a small farm', 'lake': 'by a blue lake', 'city': 'in a busy city', 'cave': 'in a dry cave',
}
THINGS = ['key', 'lamp', 'kite', 'boat', 'map', 'bell', 'hat', 'drum', 'ring', 'book', 'clock', 'basket', 'star', 'song']
FRIENDS = ['crow', 'turtle', 'horse', 'beetle', 'otter', 'deer', 'sparrow', 'donkey', 'badger', 'spider']
WEATHER = ['The sun was shining', 'It was raining', 'Snow was falling', 'The wind was strong', 'Fog lay over the land', 'It was a warm evening']

SEARCH = ['under every stone', 'behind every tree', 'in all the rooms', 'along the path', 'in the tall grass', 'from morning until night']
FOUND = ['under a pile of leaves', 'on the roof', 'in an empty nest', 'at the bottom of a well', 'behind the door', 'in the moonlight']
MORALS = [
    'From that day on, the two were friends.', 'And they never forgot that day.', 'That night, everyone slept well.', 'It was the best day of the year.',
    'After that, nothing was lost again.', 'They laughed about it for a long time.', 'And that is how a small trouble became a good story.',
]


def article(noun):
    return f'an {noun}' if noun[0] in 'aeiou' else f'a {noun}'


def lost(pick, at):
    return [
        pick([f'One day, the {at["thing"]} was gone.', f'One morning, the {at["hero"]} could not find the {at["thing"]}.', f'Then, one night, the {at["thing"]} disappeared.']),
        f'The {at["hero"]} looked {pick(SEARCH)}, but it was not there.',
        pick([f'"Have you seen my {at["thing"]}?" asked the {at["hero"]}.', f'"I have lost my {at["thing"]}," said the {at["hero"]}.']),
        pick([f'"No," said {article(at["friend"])}, "but I will help you."', f'{article(at["friend"]).capitalize()} heard this and came to help.']),
        f'Together they found the {at["thing"]} {pick(FOUND)}.',
    ]


def journey(pick, at):
    return [
        pick([f'The {at["hero"]} wanted to see the world.', f'Every day, the {at["hero"]} dreamed of faraway lands.']),
        f'So the {at["hero"]} took the {at["thing"]} and walked for {pick(["two", "three", "seven", "ten"])} days.',
        pick([f'On the way, the {at["hero"]} met {article(at["friend"])}.', f'{article(at["friend"]).capitalize()} was sitting at the side of the road.']),
        pick(['"Where are you going?" it asked.', '"May I come with you?" it asked.']),
        pick(['"To the end of the road," was the answer.', '"I do not know yet," was the answer, "but it must be beautiful there."']),
        pick(['They went on together, and the road became short.', 'They shared their bread and walked on together.']),
    ]


def storm(pick, at):
    return [
        pick(['One evening, a great storm came.', 'Then a storm came, and the sky turned black.']),
        pick([f'The {at["hero"]} was afraid and held the {at["thing"]} close.', f'The {at["hero"]} hid in a corner with the {at["thing"]}.']),
        pick(['Somebody knocked at the door.', 'There was a small voice outside.']),
        f'It was {article(at["friend"])}, cold and wet.',
        pick([f'"Come in," said the {at["hero"]}, "there is room for two."', f'The {at["hero"]} opened the door and made a fire.']),
        pick(['They told each other stories until the storm was over.', 'They drank hot tea and listened to the rain.']),
    ]


def gift(pick, at):
    return [
        pick([f'The {at["hero"]} had made the {at["thing"]} with great care.', f'The {at["thing"]} was the finest in the whole land.']),
        pick([f'One day, the {at["hero"]} saw {article(at["friend"])} that was very sad.', f'But {article(at["friend"])} that lived nearby had nothing at all.']),
        f'"What is wrong?" asked the {at["hero"]}.',
        pick(['"Today is my birthday, and I am alone," it said.', '"I have no one to play with," it said.']),
        f'So the {at["hero"]} gave it the {at["thing"]} and stayed for supper.',
        f'The {at["friend"]} was so happy that it danced {pick(["all night", "on the table", "around the house"])}.',
    ]


def story(random, hero, place, thing=None):
    pick = random.choice
    at = dict(hero=hero, thing=thing or pick(THINGS), friend=pick(FRIENDS))
    adjective = pick(ADJECTIVES)
    subject, possessive = ('she', 'her') if hero in ('girl', 'queen') else ('he', 'his') if hero in ('boy', 'king', 'wizard', 'sailor', 'giant') else ('it', 'its')
    own = pick([f'{subject.capitalize()} had {article(at["thing"])} that {subject} loved very much.', f'{possessive.capitalize()} greatest treasure was {article(at["thing"])}.'])
    sentences = [
        pick([f'Once upon a time, {article(adjective)} {hero} lived {PLACES[place]}.', f'{PLACES[place].capitalize()} there lived {article(adjective)} {hero}.']),
        own,
        *([pick(WEATHER) + '.'] if random.random() < 0.3 else []),
        *pick([lost, journey, storm, gift])(pick, at),
        pick(MORALS),
    ]
    return ' '.join(sentences)


def ask(random):
    """Returns a request for a story, and the story."""
    pick = random.choice
    hero, place, thing = pick(HEROES), pick(list(PLACES)), pick(THINGS)
    kind = random.random()
    begin = pick(['Tell me a story about', 'Please tell me a story about', 'Write a short story about', 'I would like a story about'])
    if kind < 0.35:
        return f'{begin} {article(hero)}.', story(random, hero, place)
    if kind < 0.65:
        return f'{begin} {article(hero)} and {article(thing)}.', story(random, hero, place, thing)
    if kind < 0.85:
        return f'{begin} {article(hero)} and {article(place)}.', story(random, hero, place)
    return pick(['Tell me a story.', 'Can you tell me a story?', 'Do you know a story?', 'Tell me another story.']), story(random, hero, place)
