// What is asked: twenty questions behind one long system prompt, and then a chat that goes on, is edited, rolled back and forked.

/** How a request follows from those before it. */
export type Way = 'question' | 'next turn' | 'edit' | 'roll-back' | 'fork'

export interface Request {
  readonly way: Way
  /** The whole prompt, given the answers of all requests before it: that is what a stateless client sends. */
  readonly prompt: (answers: readonly (readonly number[])[]) => number[]
}

export const ANSWER = 16
const QUESTIONS = 20

/** Made-up ids: the same on every machine. */
function ids(length: number, seed: number): number[] {
  let state = seed
  return Array.from({ length }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return 3 + (state >>> 8) % 317
  })
}

const system = ids(400, 1)
const question = (number: number): number[] => ids(12, 100 + number)

/** The chat of the last question: what was said in it, and the answer. */
function turn(answers: readonly (readonly number[])[], first = question(QUESTIONS - 1)): number[] {
  return [...system, ...first, ...(answers[QUESTIONS - 1] as readonly number[])]
}

/** The same with another word in the middle of the question. */
const edited = question(QUESTIONS - 1).with(6, 42)

export const requests: readonly Request[] = [
  ...Array.from({ length: QUESTIONS }, (_, number): Request => ({ way: 'question', prompt: () => [...system, ...question(number)] })),
  { way: 'next turn', prompt: answers => [...turn(answers), ...question(30)] },
  { way: 'edit', prompt: answers => [...turn(answers, edited), ...question(31)] },
  { way: 'roll-back', prompt: answers => [...turn(answers, edited), ...question(32)] },
  { way: 'fork', prompt: answers => [...turn(answers, edited), ...question(33)] },
]
