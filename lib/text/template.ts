// Chat templates: messages to the text that the model was trained on.
//
// A template is a program of the model's author, so it is run with limits: at most a second, and ranges of a bounded length. Its errors are `TEMPLATE_FAILED`.
import { invalid, KvTideError } from '../errors/errors.js'
import { type JinjaPackage, jinjaPackage } from './packages.js'
import { limited, rendered } from './template-run.js'

/** @internal The variables of a template. */
export type Variables = Readonly<Record<string, unknown>>

/** The maximum length of `range`. Templates count messages. */
const RANGE_MAX = 100_000
/** The name of the template for chats with tools, if a model has several. */
const FOR_TOOLS = 'tool_use'

interface Parsed {
  readonly text: string
  readonly program: unknown
}

/** @internal The chat templates of a model. */
export class ChatTemplate {
  readonly #jinja: JinjaPackage
  readonly #own: Parsed
  readonly #forTools: Parsed
  readonly #specials: Variables

  private constructor(jinja: JinjaPackage, own: Parsed, forTools: Parsed, specials: Variables) {
    this.#jinja = jinja
    this.#own = own
    this.#forTools = forTools
    this.#specials = specials
  }

  /**
   * Selects the template, by name or as its text, and parses it. Returns `undefined` if the model has none. `specials` are variables with the texts of special
   * tokens.
   */
  static async of(
    templates: ReadonlyMap<string, string>,
    given: string | undefined,
    specials: Variables,
  ): Promise<ChatTemplate | undefined> {
    const own = selected(templates, given)
    if (own === undefined) return undefined
    const jinja = await jinjaPackage()
    const parsed = (text: string): Parsed => ({ text, program: parse(jinja, text) })
    const forTools = given === undefined ? templates.get(FOR_TOOLS) : undefined
    const first = parsed(own)
    return new ChatTemplate(jinja, first, forTools === undefined ? first : parsed(forTools), specials)
  }

  /** The template's text for chats with tools. */
  get text(): string {
    return this.#forTools.text
  }

  /** True if the template of chats mentions a word, or has a text of this form. */
  mentions(word: string | RegExp): boolean {
    return [this.#own, this.#forTools].some(({ text }) =>
      typeof word === 'string' ? text.includes(word) : word.test(text),
    )
  }

  render(variables: Variables): string {
    const { program } = variables['tools'] === null ? this.#own : this.#forTools
    return rendered(this.#jinja, program, { ...constants(this.#jinja), ...this.#specials, ...variables })
  }
}

function selected(templates: ReadonlyMap<string, string>, given: string | undefined): string | undefined {
  if (given === undefined) return templates.get('default') ?? [...templates.values()][0]
  const named = templates.get(given)
  if (named !== undefined) return named
  // A template without any tag would be the same text for all messages.
  if (given.includes('{{') || given.includes('{%')) return given
  const names = [...templates.keys()].join(', ')
  throw invalid(
    'template',
    given,
    `the text of a Jinja template, or the name of one of the model's: ${names || 'it has none'}`,
  )
}

function parse({ Template }: JinjaPackage, text: string): unknown {
  return limited(() => new Template(text).parsed)
}

/** The functions and constants that templates use. */
function constants({ Template }: JinjaPackage): Variables {
  return {
    true: true,
    false: false,
    none: null,
    True: true,
    False: false,
    None: null,
    raise_exception: (reason: unknown): never => {
      throw new Error(String(reason))
    },
    range,
    strftime_now: (format: unknown): string => new Template('{{ strftime_now(format) }}').render({ format }),
  }
}

function range(first: number, second?: number, step: number = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second]
  const length = Math.max(0, Math.ceil((stop - start) / step))
  if (!(length <= RANGE_MAX)) throw new Error(`range() of ${length} numbers, expected at most ${RANGE_MAX}`)
  return Array.from({ length }, (_, place) => start + place * step)
}

/** @internal The error of a chat with a model that has no template. */
export function missingTemplate(name: string): KvTideError<'TEMPLATE_FAILED'> {
  const reason = `${name} has no chat template: give the option template of TextModel.load, put chat_template.jinja beside the model, or call complete({ prompt })`
  return new KvTideError('TEMPLATE_FAILED', reason, { reason })
}
