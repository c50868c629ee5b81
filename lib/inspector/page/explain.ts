// The form that explains cache hits and misses of a prompt.
import { byId } from './html.js'

const REASONS: Readonly<Record<string, string>> = {
  'not-committed': 'a sequence has its tokens, but a transaction is still open, or not all layers are written',
  evicted: 'it was evicted recently',
  'other-salt': 'it is cached under another salt or with other extras',
  'window-gone': 'it is cached, but layers with a window have dropped tokens that the next token would see',
  'no-state-here':
    'attention has it cached, but there is no checkpoint of the states behind it, nor behind a later block',
  'never-seen': 'it was never computed in this cache, as far as is known',
}

interface Explained {
  readonly matched?: number
  readonly cached?: number
  readonly missing?: { readonly block: number; readonly reason: string; readonly above?: number }
  readonly error?: { readonly message: string }
}

/** Asks the cache how many tokens of the form are cached, and shows the answer. */
export function explainForm(form: HTMLFormElement): void {
  form.addEventListener('submit', event => {
    event.preventDefault()
    const answer = byId('answer')
    ask().then(
      words => {
        answer.textContent = words
      },
      (error: unknown) => {
        answer.textContent = String(error)
      },
    )
  })
}

async function ask(): Promise<string> {
  const tokens = (byId<HTMLTextAreaElement>('tokens').value.match(/-?[\d.]+/g) ?? []).map(Number)
  const salt = byId<HTMLInputElement>('salt').value
  const response = await fetch('explain', {
    method: 'POST',
    body: JSON.stringify({ tokens, ...(salt !== '' && { salt }) }),
  })
  const { matched = 0, cached = matched, missing, error } = (await response.json()) as Explained
  if (error !== undefined) return error.message
  const found = `${matched.toLocaleString('en')} of ${tokens.length.toLocaleString('en')} tokens are cached`
  if (missing === undefined) return `${found}: all full blocks except the one with the last token`
  const states = missing.reason === 'no-state-here' ? `. ${checkpoints(matched, cached, missing.above)}` : ''
  return `${found}. Block ${missing.block} is a miss: ${REASONS[missing.reason] ?? missing.reason} (${missing.reason})${states}`
}

/** The nearest checkpoints, and what attention has. */
function checkpoints(below: number, cached: number, above: number | undefined): string {
  const [lower, upper, all] = [below, above, cached].map(tokens => tokens?.toLocaleString('en'))
  const first = below === 0 ? 'There is no checkpoint below' : `The checkpoint below is at ${lower} tokens`
  const second = above === undefined ? 'there is none above' : `the next one is at ${upper}`
  return `${first}, ${second}; attention has ${all} tokens`
}
