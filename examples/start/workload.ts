// The requests: twenty questions after one long system prompt, then a chat that is continued, edited, rolled back and forked.

/** The relation of a request to the requests before it. */
export type Way = 'question' | 'next turn' | 'edit' | 'roll-back' | 'fork'

export interface Request {
  readonly way: Way
  /** Returns the whole prompt, given the answers to all earlier requests: a stateless client sends it this way. */
  readonly prompt: (answers: readonly (readonly number[])[]) => number[]
}

export const ANSWER = 16
const QUESTIONS = 20

/** Returns pseudo-random ids, the same on every machine. */
function ids(length: number, seed: number): number[] {
  let state = seed
  return Array.from({ length }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return 3 + ((state >>> 8) % 317)
  })
}

const system = ids(400, 1)
const question = (number: number): number[] => ids(12, 100 + number)

/** Returns the chat of the last question: system prompt, question and answer. */
function turn(answers: readonly (readonly number[])[], first = question(QUESTIONS - 1)): number[] {
  return [...system, ...first, ...(answers[QUESTIONS - 1] as readonly number[])]
}

/** The last question with one token in the middle replaced. */
const edited = question(QUESTIONS - 1).with(6, 42)

export const requests: readonly Request[] = [
  ...Array.from({ length: QUESTIONS }, (_, number): Request => ({
    way: 'question',
    prompt: () => [...system, ...question(number)],
  })),
  { way: 'next turn', prompt: answers => [...turn(answers), ...question(30)] },
  { way: 'edit', prompt: answers => [...turn(answers, edited), ...question(31)] },
  { way: 'roll-back', prompt: answers => [...turn(answers, edited), ...question(32)] },
  { way: 'fork', prompt: answers => [...turn(answers, edited), ...question(33)] },
]
