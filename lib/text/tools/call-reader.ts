// Readers of calls: what follows the start of a call in an answer, character by character.
//
// A call is given out as soon as its name is one of a tool and its arguments have begun; from then on, the arguments are streamed. A call that is wrong before
// was no call: its text becomes text of the answer.
import { JsonObject, type Progress } from './json-object.js'
import type { AnswerPart, CallList } from './parts.js'

/** @internal */
export interface CallReader {
  /** Adds a character. `wrong`: what was read is text, unless calls were given out. */
  push(character: string, out: AnswerPart[]): Progress
  /** Ends the answer. Returns true if what was read was whole. */
  end(out: AnswerPart[]): boolean
}

/** A call in JSON: `{"name": …, "arguments": …}`. */
class JsonCall {
  readonly #calls: CallList
  readonly #object = new JsonObject()
  /** True if the object alone is no sign of a call, so that it needs arguments. */
  readonly #isBare: boolean
  #index: number | undefined
  /** The field with the arguments, and whether they were whole when the call was given out. */
  #key = ''
  #isWhole = false

  constructor(calls: CallList, isBare: boolean) {
    this.#calls = calls
    this.#isBare = isBare
  }

  push(character: string, out: AnswerPart[]): Progress {
    const wasStarted = this.#index !== undefined
    const before = this.#object.field?.name
    const progress = this.#object.push(character)
    if (progress === 'wrong') return progress
    if (wasStarted) {
      const isMore = !this.#isWhole && this.#object.isAppended && before === this.#key
      if (isMore) out.push({ type: 'tool-arguments', index: this.#index as number, text: character })
      return progress
    }
    const { fields } = this.#object
    const name = nameOf(fields.get('name'))
    if (fields.has('name') && !this.#calls.has(name)) return 'wrong'
    if (name !== undefined) this.#start(name, out)
    if (progress !== 'done' || this.#index !== undefined) return progress
    if (name === undefined || this.#isBare) return 'wrong'
    this.#give(name, '{}', out)
    return 'done'
  }

  /** Starts the call if its arguments have begun. Arguments in a string are JSON inside JSON: they are given out as a whole. */
  #start(name: string, out: AnswerPart[]): void {
    const { field, fields } = this.#object
    const key = ARGUMENTS.find(each => fields.has(each) || field?.name === each)
    if (key === undefined) return
    const whole = fields.get(key)
    const json = whole ?? field?.text ?? ''
    if (json === '' || (json.startsWith('"') && whole === undefined)) return
    this.#key = key
    this.#isWhole = whole !== undefined
    this.#give(name, json.startsWith('"') ? (JSON.parse(json) as string) : json, out)
  }

  #give(name: string, text: string, out: AnswerPart[]): void {
    const id = nameOf(this.#object.fields.get('id'))
    const started = this.#calls.start(name, ...(id === undefined ? [] : ([id] as const)))
    this.#index = started.index
    out.push(started, { type: 'tool-arguments', index: started.index, text })
  }
}

/** The names of the field with the arguments. */
const ARGUMENTS = ['arguments', 'parameters']

function nameOf(json: string | undefined): string | undefined {
  if (json === undefined) return undefined
  const name = JSON.parse(json) as unknown
  return typeof name === 'string' ? name : undefined
}

/** @internal The form of calls in JSON. */
export interface JsonForm {
  /** The text behind the calls, which may be missing at the end of an answer. */
  readonly close?: string
  /** True if calls may be in a list. */
  readonly isList?: boolean
  /** The text between calls. */
  readonly between?: string
  /** True if nothing in front of the object says that it is a call. */
  readonly isBare?: boolean
}

/** @internal Calls in JSON: one, or a list of them. */
export class JsonCalls implements CallReader {
  readonly #calls: CallList
  readonly #form: JsonForm
  #call: JsonCall | undefined
  #isInList = false
  #close = ''
  #state: 'before' | 'call' | 'behind' = 'before'

  constructor(calls: CallList, form: JsonForm) {
    this.#calls = calls
    this.#form = form
  }

  push(character: string, out: AnswerPart[]): Progress {
    if (this.#state === 'call') return this.#inCall(character, out)
    if (this.#close === '' && ' \t\n\r'.includes(character)) return 'more'
    return this.#state === 'before' ? this.#before(character, out) : this.#behind(character)
  }

  end(): boolean {
    return this.#state === 'behind' && !this.#isInList
  }

  #before(character: string, out: AnswerPart[]): Progress {
    if (character === '[' && this.#form.isList === true && !this.#isInList) {
      this.#isInList = true
      return 'more'
    }
    if (character !== '{') return 'wrong'
    this.#call = new JsonCall(this.#calls, this.#form.isBare === true)
    this.#state = 'call'
    return this.#inCall(character, out)
  }

  #inCall(character: string, out: AnswerPart[]): Progress {
    const progress = (this.#call as JsonCall).push(character, out)
    if (progress !== 'done') return progress
    this.#state = 'behind'
    return this.#isLast ? 'done' : 'more'
  }

  /** True if nothing can follow the call. */
  get #isLast(): boolean {
    return !this.#isInList && this.#form.close === undefined && this.#form.between === undefined
  }

  #behind(character: string): Progress {
    const { close, between } = this.#form
    if (this.#isInList) {
      if (character === ',') this.#state = 'before'
      else if (character === ']') {
        this.#isInList = false
        return this.#isLast ? 'done' : 'more'
      } else return 'wrong'
      return 'more'
    }
    if (character === between) {
      this.#state = 'before'
      return 'more'
    }
    this.#close += character
    if (close === undefined || !close.startsWith(this.#close)) return 'wrong'
    return this.#close === close ? 'done' : 'more'
  }
}

/** @internal Mistral's calls: a list, or a name, an optional id and the arguments. */
export class MistralCalls implements CallReader {
  readonly #calls: CallList
  #list: JsonCalls | undefined
  #head = ''
  #arguments: JsonObject | undefined
  #index = 0

  constructor(calls: CallList) {
    this.#calls = calls
  }

  push(character: string, out: AnswerPart[]): Progress {
    if (this.#list !== undefined) return this.#list.push(character, out)
    if (this.#arguments !== undefined) {
      const progress = this.#arguments.push(character)
      if (progress !== 'wrong') out.push({ type: 'tool-arguments', index: this.#index, text: character })
      return progress
    }
    const head = this.#head.trimStart()
    if (head === '' && (character === '{' || character === '[')) {
      this.#list = new JsonCalls(this.#calls, { isList: true })
      return this.#list.push(character, out)
    }
    if (character !== '{') {
      this.#head += character
      return this.#head.length > HEAD_MAX ? 'wrong' : 'more'
    }
    const [, name, id] = /^\s*([^\s[\]]+)\s*(?:\[CALL_ID\]\s*([^\s[\]]+)\s*)?(?:\[ARGS\]\s*)?$/.exec(this.#head) ?? []
    if (!this.#calls.has(name)) return 'wrong'
    const started = this.#calls.start(name, ...(id === undefined ? [] : ([id] as const)))
    this.#index = started.index
    this.#arguments = new JsonObject()
    out.push(started)
    return this.push(character, out)
  }

  end(): boolean {
    return this.#list?.end() ?? false
  }
}

/** The maximum number of characters of a name with what is around it. */
const HEAD_MAX = 400
