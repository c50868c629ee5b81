"""Notes about the people of a village, and questions that only the notes answer."""
PEOPLE = {
    'she': ['Anna', 'Clara', 'Emma', 'Grace', 'Ida', 'Kate', 'Mia', 'Olga', 'Rosa', 'Tina', 'Zoe', 'Alice', 'Nora', 'Lucy', 'Ruth', 'Eva', 'Lena', 'Julia', 'Vera', 'Greta'],
    'he': ['Ben', 'David', 'Felix', 'Hugo', 'Jonas', 'Leo', 'Noah', 'Paul', 'Sam', 'Victor', 'Walter', 'Oscar', 'Max', 'Peter', 'Tom', 'Carl', 'Martin', 'Simon', 'Otto', 'Anton'],
}
NAMES = [name for group in PEOPLE.values() for name in group]
JOBS = ['baker', 'teacher', 'doctor', 'gardener', 'carpenter', 'painter', 'farmer', 'singer', 'cook', 'tailor', 'pilot', 'nurse', 'driver', 'writer', 'beekeeper',
        'shoemaker', 'librarian', 'potter', 'miller', 'blacksmith', 'fisher', 'weaver', 'dentist', 'builder', 'dancer', 'judge', 'grocer', 'sailor', 'florist', 'clockmaker']
COLOURS = ['red', 'blue', 'green', 'yellow', 'white', 'grey', 'brown', 'pink', 'black', 'orange']
PLACES = ['by the river', 'near the church', 'on the hill', 'behind the mill', 'next to the market', 'at the edge of the forest', 'beside the school', 'near the bridge',
          'above the lake', 'across from the bakery', 'in Garden Street', 'in Station Road', 'at the old well', 'under the big oak', 'at the end of the lane', 'near the harbour']
PETS = ['cat', 'dog', 'parrot', 'rabbit', 'goat', 'pony', 'hen', 'turtle', 'duck', 'hamster', 'goose', 'sheep']
PET_NAMES = ['Milo', 'Luna', 'Coco', 'Bella', 'Rocky', 'Daisy', 'Toby', 'Lily', 'Rusty', 'Pepper', 'Ginger', 'Biscuit', 'Poppy', 'Shadow', 'Honey', 'Snowy', 'Buddy', 'Ruby',
             'Jasper', 'Mabel', 'Pip', 'Olive', 'Smoky', 'Clover', 'Hazel', 'Button', 'Cosmo', 'Misty', 'Bruno', 'Nutmeg', 'Tulip', 'Comet']
FOODS = ['apple cake', 'tomato soup', 'fresh bread', 'plum jam', 'fried fish', 'pancakes', 'mushroom pie', 'roast potatoes', 'cheese', 'carrot salad', 'rice pudding', 'noodles',
         'strawberries', 'walnuts', 'onion tart', 'bean stew', 'lemon ice', 'pumpkin soup', 'cherries', 'honey cake', 'boiled eggs', 'pears', 'ginger biscuits', 'corn']
INSTRUMENTS = ['piano', 'violin', 'flute', 'drums', 'guitar', 'trumpet', 'harp', 'accordion', 'cello', 'organ', 'banjo', 'clarinet']

# The kinds of questions, and how often each is asked.
KINDS = {'job': 4, 'home': 4, 'colour': 3, 'pet': 3, 'called': 4, 'food': 3, 'plays': 3, 'who-job': 4, 'who-pet': 4, 'who-place': 2, 'who-food': 2, 'unknown': 1, 'all': 5, 'json': 2}

OPENINGS = [
    'You are the clerk of a small village. Answer questions from the notes.',
    'These are the notes of the village. Use them to answer.',
    'You know the people of the village from these notes.',
    'You help visitors of a small village. Here are your notes.',
]


def article(noun):
    return f'an {noun}' if noun[0] in 'aeiou' else f'a {noun}'


def household(random, count):
    """Returns people with their facts. Jobs and names of pets are different for everyone; places, foods and instruments may repeat."""
    names = random.sample(NAMES, count)
    jobs, pets = random.sample(JOBS, min(count, len(JOBS))), random.sample(PET_NAMES, min(count, len(PET_NAMES)))
    return [
        dict(name=name, job=jobs[at % len(jobs)], colour=random.choice(COLOURS), place=random.choice(PLACES), pet=random.choice(PETS), called=pets[at % len(pets)],
             food=random.choice(FOODS), plays=random.choice(INSTRUMENTS))
        for at, name in enumerate(names)
    ]


def note(person):
    return ('{name} is {job}. {name} lives in the {colour} house {place}. {name} has {pet} called {called}. {name} likes {food} and plays the {plays}.'
            .format(**{**person, 'job': article(person['job']), 'pet': article(person['pet'])}))


def notes(random, people):
    return '\n'.join([random.choice(OPENINGS), *map(note, people)])


def ask(random, people, kind=None):
    """Returns a question and its answer."""
    one = random.choice(people)
    name = one['name']
    only = lambda field: sum(other[field] == one[field] for other in people) == 1
    kinds = [one_kind for one_kind in KINDS if (one_kind != 'who-place' or only('place')) and (one_kind != 'who-food' or only('food'))]
    kind = kind or random.choices(kinds, [KINDS[one_kind] for one_kind in kinds])[0]
    pick = random.choice
    if kind == 'job':
        return pick([f'What does {name} do?', f'What is the job of {name}?', f'What is {name}?']), f'{name} is {article(one["job"])}.'
    if kind == 'home':
        return pick([f'Where does {name} live?', f'Where is the house of {name}?', f'Where can I find {name}?']), f'{name} lives in the {one["colour"]} house {one["place"]}.'
    if kind == 'colour':
        return pick([f'What colour is the house of {name}?', f'Which colour does the house of {name} have?']), f'The house of {name} is {one["colour"]}.'
    if kind == 'pet':
        return pick([f'What animal does {name} have?', f'Does {name} have a pet?', f'Which pet does {name} have?']), f'{name} has {article(one["pet"])} called {one["called"]}.'
    if kind == 'called':
        return pick([f'What is the pet of {name} called?', f'What is the name of the {one["pet"]} of {name}?']), f'The {one["pet"]} of {name} is called {one["called"]}.'
    if kind == 'food':
        return pick([f'What does {name} like to eat?', f'What food does {name} like?', f'What should I cook for {name}?']), f'{name} likes {one["food"]}.'
    if kind == 'plays':
        return pick([f'What does {name} play?', f'Which instrument does {name} play?']), f'{name} plays the {one["plays"]}.'
    if kind == 'who-job':
        return pick([f'Who is the {one["job"]}?', f'Is there {article(one["job"])} here?', f'I need {article(one["job"])}. Who can help me?']), f'{name} is the {one["job"]}.'
    if kind == 'who-pet':
        return pick([f'Who is {one["called"]}?', f'I found {one["called"]}. Whose pet is it?', f'Who has {article(one["pet"])} called {one["called"]}?']), \
            f'{one["called"]} is the {one["pet"]} of {name}.'
    if kind == 'who-place':
        return pick([f'Who lives {one["place"]}?', f'Is there anyone {one["place"]}?']), f'{name} lives {one["place"]}.'
    if kind == 'who-food':
        return f'Who likes {one["food"]}?', f'{name} likes {one["food"]}.'
    if kind == 'all':
        return pick([f'Tell me about {name}.', f'What do you know about {name}?', f'Who is {name}?']), note(one)
    if kind == 'json':
        return pick([f'Describe {name} as JSON.', f'Give me the facts about {name} as JSON.']), \
            '{{"name": "{name}", "job": "{job}", "house": "{colour}", "pet": "{called}", "plays": "{plays}"}}'.format(**one)
    missing = pick([other for other in NAMES if all(other != known['name'] for known in people)])
    return pick([f'What does {missing} do?', f'Where does {missing} live?', f'What animal does {missing} have?', f'What is the job of {missing}?', f'Which instrument does {missing} play?']), \
        f'The notes say nothing about {missing}.'
