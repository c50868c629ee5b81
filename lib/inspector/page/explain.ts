import { byId } from './html.js'

const REASONS: Readonly<Record<string, string>> = {
  'not-committed': 'a sequence has its tokens, but a transaction can take them back, or not all layers are written',
  'evicted': 'it had to make room, not long ago',
  'other-salt': 'it is there under another salt, or with other extras',
  'window-gone': 'it is there, but layers with a window have dropped what the next token would see',
  'never-seen': 'nobody has computed it here, as far as is known',
}

interface Explained {
  readonly matched?: number
  readonly missing?: { readonly block: number; readonly reason: string }
  readonly error?: { readonly message: string }
}

/** Asks how far the tokens of the form are found, and says it in words. */
export function explainForm(form: HTMLFormElement): void {
  form.addEventListener('submit', event => {
    event.preventDefault()
    const answer = byId('answer')
    ask().then(words => { answer.textContent = words }, (error: unknown) => { answer.textContent = String(error) })
  })
}

async function ask(): Promise<string> {
  const tokens = (byId<HTMLTextAreaElement>('tokens').value.match(/-?[\d.]+/g) ?? []).map(Number)
  const salt = byId<HTMLInputElement>('salt').value
  const response = await fetch('explain', { method: 'POST', body: JSON.stringify({ tokens, ...(salt !== '' && { salt }) }) })
  const { matched = 0, missing, error } = (await response.json()) as Explained
  if (error !== undefined) return error.message
  const found = `${matched.toLocaleString('en')} of ${tokens.length.toLocaleString('en')} tokens are found`
  if (missing === undefined) return `${found}: all whole blocks but the one with the last token`
  return `${found}. Block ${missing.block} is not: ${REASONS[missing.reason] ?? missing.reason} (${missing.reason})`
}
