// The notes of a village: the long start that all prompts share. The demo's model has read notes of this form, but not these.

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
  'You are the clerk of a small village. Answer questions from the notes.',
  ...PEOPLE.map(
    ([name, job, colour, place, pet, called, food, plays]) =>
      `${name} is ${one(job)}. ${name} lives in the ${colour} house ${place}. ` +
      `${name} has ${one(pet)} called ${called}. ${name} likes ${food} and plays the ${plays}.`,
  ),
].join('\n')

/** Questions about the notes, with their answers. */
const ANSWERS: Readonly<Record<string, string>> = {
  'Where does Nora live?': 'Nora lives in the orange house at the edge of the forest.',
  'Who is the baker?': 'Grace is the baker.',
  'What is the name of the cat of Hugo?': 'The cat of Hugo is called Pepper.',
  'Which instrument does David play?': 'David plays the violin.',
  'What colour is the house of Rosa?': 'The house of Rosa is yellow.',
  'I found Pip. Whose pet is it?': 'Pip is the dog of David.',
  'What does Oscar do?': 'Oscar is a tailor.',
  'I need a doctor. Who can help me?': 'Ben is the doctor.',
  'What does Eva like to eat?': 'Eva likes noodles.',
  'Which pet does Max have?': 'Max has a pony called Comet.',
  'Where can I find Greta?': 'Greta lives in the blue house near the church.',
  'Who is the pilot?': 'Simon is the pilot.',
  'What does Alice play?': 'Alice plays the violin.',
  'Who is Rusty?': 'Rusty is the hamster of Rosa.',
  'What is the job of Kate?': 'Kate is a blacksmith.',
  'What should I cook for Simon?': 'Simon likes bean stew.',
  'Who is the farmer?': 'Victor is the farmer.',
  'Where is the house of Carl?': 'Carl lives in the pink house in Garden Street.',
  'Does Noah have a pet?': 'Noah has a parrot called Lily.',
  'What does Vera do?': 'Vera is a judge.',
}

/** Questions that the notes answer. */
export const QUESTIONS: readonly string[] = Object.keys(ANSWERS)

/** The right answer to one of {@link QUESTIONS}. */
export const answerOf = (question: string): string | undefined => ANSWERS[question]
