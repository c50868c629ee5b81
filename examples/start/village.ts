// The notes of a village: the long system prompt that all requests share; and the questions.

/** Name, job, colour and place of the house, pet and its name, food, instrument. */
type Person = readonly [string, string, string, string, string, string, string, string]

const PEOPLE: readonly Person[] = [
  ['Olga', 'fisher', 'brown', 'beside the school', 'goat', 'Tulip', 'cheese', 'piano'],
  ['Ben', 'doctor', 'red', 'next to the market', 'goose', 'Buddy', 'honey cake', 'accordion'],
  ['Max', 'builder', 'black', 'near the harbour', 'pony', 'Comet', 'mushroom pie', 'guitar'],
  ['Simon', 'pilot', 'pink', 'at the end of the lane', 'duck', 'Button', 'bean stew', 'harp'],
  ['Mia', 'florist', 'black', 'near the church', 'goat', 'Milo', 'rice pudding', 'accordion'],
  ['Ruth', 'potter', 'blue', 'at the end of the lane', 'sheep', 'Jasper', 'ginger biscuits', 'cello'],
  ['Noah', 'dancer', 'white', 'at the end of the lane', 'parrot', 'Lily', 'walnuts', 'clarinet'],
  ['Oscar', 'tailor', 'pink', 'on the hill', 'goose', 'Hazel', 'cheese', 'accordion'],
  ['Sam', 'dentist', 'grey', 'behind the mill', 'rabbit', 'Rocky', 'corn', 'harp'],
  ['Anton', 'beekeeper', 'green', 'at the end of the lane', 'cat', 'Luna', 'fresh bread', 'piano'],
  ['Anna', 'carpenter', 'pink', 'on the hill', 'hamster', 'Nutmeg', 'mushroom pie', 'drums'],
  ['Greta', 'miller', 'blue', 'near the church', 'duck', 'Bella', 'cheese', 'banjo'],
  ['Emma', 'weaver', 'grey', 'next to the market', 'cat', 'Mabel', 'rice pudding', 'banjo'],
  ['Grace', 'baker', 'orange', 'near the harbour', 'sheep', 'Shadow', 'corn', 'flute'],
  ['Tina', 'nurse', 'black', 'near the bridge', 'turtle', 'Snowy', 'cherries', 'flute'],
  ['Peter', 'painter', 'orange', 'across from the bakery', 'dog', 'Clover', 'walnuts', 'banjo'],
  ['Tom', 'singer', 'green', 'next to the market', 'hamster', 'Ruby', 'carrot salad', 'cello'],
  ['Victor', 'farmer', 'brown', 'at the old well', 'parrot', 'Honey', 'lemon ice', 'drums'],
  ['David', 'teacher', 'brown', 'by the river', 'dog', 'Pip', 'strawberries', 'violin'],
  ['Eva', 'driver', 'red', 'in Station Road', 'goose', 'Smoky', 'noodles', 'piano'],
  ['Zoe', 'sailor', 'red', 'near the harbour', 'pony', 'Ginger', 'pears', 'guitar'],
  ['Carl', 'cook', 'pink', 'in Garden Street', 'dog', 'Bruno', 'bean stew', 'accordion'],
  ['Nora', 'writer', 'orange', 'at the edge of the forest', 'parrot', 'Biscuit', 'cherries', 'cello'],
  ['Rosa', 'grocer', 'yellow', 'under the big oak', 'hamster', 'Rusty', 'rice pudding', 'accordion'],
  ['Alice', 'librarian', 'orange', 'near the bridge', 'goose', 'Olive', 'ginger biscuits', 'violin'],
  ['Hugo', 'gardener', 'black', 'at the old well', 'cat', 'Pepper', 'mushroom pie', 'banjo'],
  ['Kate', 'blacksmith', 'green', 'near the church', 'goose', 'Cosmo', 'pumpkin soup', 'piano'],
  ['Julia', 'shoemaker', 'pink', 'beside the school', 'turtle', 'Coco', 'ginger biscuits', 'banjo'],
  ['Vera', 'judge', 'red', 'next to the market', 'goose', 'Daisy', 'lemon ice', 'drums'],
  ['Lena', 'clockmaker', 'black', 'next to the market', 'parrot', 'Poppy', 'pears', 'flute'],
]

const one = (noun: string): string => `${/^[aeiou]/.test(noun) ? 'an' : 'a'} ${noun}`

/** The system prompt. */
export const NOTES: string = [
  'You help visitors of a small village. Here are your notes.',
  ...PEOPLE.map(
    ([name, job, colour, place, pet, called, food, plays]) =>
      `${name} is ${one(job)}. ${name} lives in the ${colour} house ${place}. ` +
      `${name} has ${one(pet)} called ${called}. ${name} likes ${food} and plays the ${plays}.`,
  ),
].join('\n')

/** Questions that the demo's model can answer, with its answers. */
const ANSWERS: Readonly<Record<string, string>> = {
  'What is a KV cache?':
    'A KV cache keeps the keys and values of all tokens so far, so that the model computes each token only once.',
  'What is a token?': 'A token is a piece of text: a word, a part of a word, or a single byte.',
  'What is a prefix?': 'A prefix is the start of a prompt. Two prompts that start alike share a prefix.',
  'What is a prefix cache?':
    'A prefix cache finds the longest start of a prompt that was computed before. Only the rest is computed.',
  'Why are you so fast?': 'Because the start of your prompt is in the cache. I computed only what was new.',
  'What is a block?':
    'A block holds the keys and values of a few tokens. Sequences with the same start share their blocks.',
  'What is a fork?': 'A fork is a second chat with the same start. Both share all blocks until one of them changes.',
  'What is a tier?':
    'A tier keeps blocks outside the pool: in memory, on disk, or in a store. Later prompts get them back.',
  'What is a salt?': 'A salt keeps tenants apart. Prompts with different salts share no blocks.',
  'What is a draft?':
    'A small model drafts some tokens, and the large one checks all of them at once. Wrong drafts are rolled back.',
  'What is batching?':
    'With continuous batching, many chats share each step of the model. A new chat joins at the next step.',
  'What is attention?': 'With attention, each token looks at the tokens before it and takes what it needs.',
  'What is a sliding window?': 'With a sliding window, a layer sees only the newest tokens.',
  'What is quantization?': 'Quantization stores weights with fewer bits. With int4, each weight has four bits.',
  'What is a system prompt?':
    'A system prompt tells the model what to do, before the first question. Every chat starts with it.',
  'How can I make my server faster?': 'Put what all prompts share at the start, and let the cache do the rest.',
  'What do bees make?': 'Bees make honey.',
  'Why is the sea salty?': 'Rivers carry salt from the land into the sea.',
  'Tell me a joke.': 'Why did the token cross the road? To get to the next block.',
  'Who are you?': 'I am the demo model of kvtide. I have about a million weights, and I was trained in minutes.',
}

/** The questions of `npm start`. */
export const QUESTIONS: readonly string[] = Object.keys(ANSWERS)

/** The answer of the demo's model to one of {@link QUESTIONS}. */
export const answerOf = (question: string): string | undefined => ANSWERS[question]
