// The requests: questions after one long system prompt, then a chat that is continued, edited, rolled back and forked.
import type { ChatMessage } from 'kvtide/text'

import { NOTES, QUESTIONS } from './village.js'

/** The relation of a request to the requests before it. */
export type Way = 'question' | 'next turn' | 'edit' | 'roll-back' | 'fork'

export interface Request {
  readonly way: Way
  /** The last question. */
  readonly question: string
  /** Returns the whole chat, given the answers to all earlier requests: a stateless client sends it this way. */
  readonly messages: (answers: readonly string[]) => readonly ChatMessage[]
}

/** The maximum number of tokens of an answer. */
export const ANSWER = 160
/** A short chat for the warm-up, which shares nothing with the others. */
export const WARM_UP: readonly ChatMessage[] = [{ role: 'user', content: 'Hello!' }]

const system: ChatMessage = { role: 'system', content: NOTES }
const user = (content: string): ChatMessage => ({ role: 'user', content })

/** Returns the requests: this many questions, then the four other ways. */
export function requestsOf(questions: number): readonly Request[] {
  const asked = Array.from({ length: questions }, (_, at) => QUESTIONS[at % QUESTIONS.length] as string)
  const last = asked.length - 1
  /** Returns the chat of the last question with another one behind it; `first` replaces the last question. */
  const chat = (way: Way, question: string, first = asked[last] as string): Request => ({
    way,
    question,
    messages: answers => [system, user(first), { role: 'assistant', content: answers[last] as string }, user(question)],
  })
  const edited = 'What is ONNX?'
  return [
    ...asked.map((question): Request => ({ way: 'question', question, messages: () => [system, user(question)] })),
    chat('next turn', 'Thank you!'),
    chat('edit', 'What is temperature?', edited),
    chat('roll-back', 'What is the moon?', edited),
    chat('fork', 'What is a language model?', edited),
  ]
}
