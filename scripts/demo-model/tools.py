"""Calls of tools in the form of Hermes and Qwen: the model copies a name and arguments into JSON, and puts the result into a sentence."""
import json

CITIES = ['Rome', 'Paris', 'Oslo', 'Berlin', 'Cairo', 'Lima', 'Tokyo', 'Madrid', 'Vienna', 'Dublin', 'Athens', 'Prague', 'Lisbon', 'Boston', 'Delhi', 'Seoul']
SKIES = ['sunny', 'cloudy', 'rainy', 'windy', 'foggy', 'snowy']


def described(name, description, **parameters):
    properties = {key: dict(type=kind) for key, kind in parameters.items()}
    return dict(type='function', function=dict(
        name=name, description=description, parameters=dict(type='object', properties=properties, required=list(parameters))))


WEATHER = [described(name, text, city='string') for name in ('weather', 'get_weather', 'getWeather') for text in ('Returns the weather in a city.', 'Get the weather in a city', 'The weather of a city')]
CLOCK = [described(name, text, city='string') for name in ('time', 'get_time', 'getTime') for text in ('Returns the time in a city.', 'Get the time in a city', 'The time of a city')]


def call(tool, city):
    return '<tool_call>\n' + json.dumps(dict(name=tool['function']['name'], arguments=dict(city=city))) + '\n</tool_call>'


def ask(random, tools):
    """Returns the messages of a question, a call, its result and the answer."""
    pick = random.choice
    tool, city = pick(tools), pick(CITIES)
    if 'eather' in tool['function']['name']:
        sky, degrees = pick(SKIES), random.randint(1, 39)
        question = pick([f'What is the weather in {city}?', f'How is the weather in {city}?', f'What is the weather like in {city}?', f'Tell me the weather in {city}.'])
        result, answer = dict(sky=sky, degrees=degrees), f'It is {sky} in {city}, with {degrees} degrees.'
    else:
        hour = f'{random.randint(0, 23):02}:{random.choice([0, 15, 30, 45]):02}'
        question = pick([f'What time is it in {city}?', f'What is the time in {city}?', f'Tell me the time in {city}.'])
        result, answer = dict(time=hour), f'It is {hour} in {city}.'
    return [
        dict(role='user', content=question),
        dict(role='assistant', content=call(tool, city)),
        dict(role='tool', content=json.dumps(result, separators=pick([(',', ':'), (', ', ': ')]))),
        dict(role='assistant', content=answer),
    ]


def some(random):
    return random.choice([lambda: [random.choice(WEATHER)], lambda: [random.choice(CLOCK)], lambda: random.sample([random.choice(WEATHER), random.choice(CLOCK)], 2)])()
