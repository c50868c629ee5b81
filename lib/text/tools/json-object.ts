// Reads a JSON object character by character, so that the arguments of a call can be streamed before the object ends.
//
// The object is checked as it is read: the first character that no JSON object could have there is `wrong`. O(1) per character.

/** @internal The state after a character. */
export type Progress = 'more' | 'done' | 'wrong'

type Expecting = 'value' | 'value or end' | 'key' | 'key or end' | 'colon' | 'comma or end' | 'string' | 'word' | 'end'

const WORD = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/
const WORD_START =
  /^(?:t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|-|-?(?:0|[1-9]\d*)(?:\.\d*|(?:\.\d+)?[eE][+-]?\d*)?)$/
/** The characters behind a backslash: `u` and four digits, or one. */
const ESCAPED = '"\\/bfnrtu'

/** @internal A JSON object that comes in characters. */
export class JsonObject {
  readonly #open: ('{' | '[')[] = []
  #expecting: Expecting = 'value'
  #word = ''
  /** The characters of an escape that are still to come: 5 behind the backslash, then those of `u`. */
  #escape = 0
  #isKey = false
  /** The fields of the outermost object whose values are complete, as JSON. */
  readonly fields = new Map<string, string>()
  /** The outermost object's field that is being read, and its JSON so far. */
  field: { readonly name: string; text: string } | undefined
  /** True if the last character was part of that field's value. */
  isAppended = false

  /** Adds a character. */
  push(character: string): Progress {
    this.isAppended = false
    if (this.#expecting === 'word') {
      if (WORD_START.test(this.#word + character)) {
        this.#word += character
        this.#append(character)
        return 'more'
      }
      if (!WORD.test(this.#word)) return 'wrong'
      this.#endValue()
    }
    if (!this.#accepts(character)) return 'wrong'
    return this.#expecting === 'end' ? 'done' : 'more'
  }

  #accepts(character: string): boolean {
    if (this.#expecting === 'string') return this.#inString(character)
    if (' \t\n\r'.includes(character)) {
      if (this.#open.length > 1) this.#append(character)
      return true
    }
    switch (this.#expecting) {
      case 'value or end':
        return character === ']' ? this.#close(character) : this.#startValue(character)
      case 'value':
        return this.#startValue(character)
      case 'key or end':
        return character === '}' ? this.#close(character) : this.#startKey(character)
      case 'key':
        return this.#startKey(character)
      case 'colon':
        if (this.#open.length > 1) this.#append(character)
        this.#expecting = 'value'
        return character === ':'
      case 'comma or end':
        if (character !== ',') return this.#close(character)
        this.#append(character)
        this.#expecting = this.#open.at(-1) === '{' ? 'key' : 'value'
        return true
      default:
        return false
    }
  }

  #startValue(character: string): boolean {
    if (this.#open.length === 0 && character !== '{') return false
    this.#append(character)
    if (character === '{' || character === '[') {
      this.#open.push(character)
      this.#expecting = character === '{' ? 'key or end' : 'value or end'
      return true
    }
    this.#word = character
    this.#isKey = false
    this.#expecting = character === '"' ? 'string' : 'word'
    return character === '"' || WORD_START.test(character)
  }

  #startKey(character: string): boolean {
    this.#append(character)
    this.#word = character
    this.#isKey = true
    this.#expecting = 'string'
    return character === '"'
  }

  #inString(character: string): boolean {
    this.#append(character)
    this.#word += character
    if (this.#escape === 5) {
      this.#escape = character === 'u' ? 4 : 0
      return ESCAPED.includes(character)
    }
    if (this.#escape > 0) {
      this.#escape -= 1
      return /[\dA-Fa-f]/.test(character)
    }
    if (character === '\\') this.#escape = 5
    else if (character === '"') this.#endString()
    return character >= ' '
  }

  #endString(): void {
    if (!this.#isKey) return this.#endValue()
    this.#expecting = 'colon'
    if (this.#open.length === 1) this.field = { name: JSON.parse(this.#word) as string, text: '' }
  }

  #close(character: string): boolean {
    const open = this.#open.pop()
    if (open === undefined || character !== (open === '{' ? '}' : ']')) return false
    if (this.#open.length > 0) this.#append(character)
    this.#endValue()
    return true
  }

  #endValue(): void {
    this.#expecting = this.#open.length === 0 ? 'end' : 'comma or end'
    if (this.#open.length !== 1 || this.field === undefined) return
    this.fields.set(this.field.name, this.field.text)
    this.field = undefined
  }

  #append(character: string): void {
    if (this.field === undefined) return
    this.field.text += character
    this.isAppended = true
  }
}
