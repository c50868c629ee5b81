// bench/readme.svg: the few numbers that a reader of the README wants, from the ratios that were recorded last. Large letters: it is read on phones.
import type { Recorded } from './recorded.js'

interface Row {
  readonly what: string
  readonly other: string
  /** The recorded ratio: how many times as long the other one takes. */
  readonly id: string
}

const ROWS: readonly Row[] = [
  { what: 'First token, 1,000 of 1,020 tokens known', other: 'computed again', id: 'js-onnx-shared-1000-2/anew-over-found' },
  { what: 'A token of a chat of 2,048', other: 'onnxruntime-node', id: 'js-onnx-2048-2/peer-over-graph' },
  { what: 'A token of a chat of 8,192', other: 'onnxruntime-node', id: 'js-onnx-8192-2/peer-over-graph' },
  { what: 'A token of 8 chats of 2,048 at once', other: 'onnxruntime-node', id: 'js-onnx-8x2048-2/peer-over-graph' },
  { what: '8 clients, 256 tokens in and 64 out', other: 'node-llama-cpp', id: 'js-onnx-llama-cpp-8-2/all' },
  { what: 'Attention over 8,192 tokens, f32', other: 'onnxruntime GroupQueryAttention', id: 'js-attention/groupqueryattention-over-ours' },
  { what: 'Attention over 8,192 tokens, f16', other: 'ggml', id: 'attention-f16/ggml-over-ours' },
  { what: 'Attention over 8,192 tokens, f16', other: 'candle', id: 'attention-f16/candle-over-ours' },
]

const [WIDTH, ROW, HEAD, BAR] = [640, 52, 40, 14]
/** Where bars end that are cut: what is longer says so by its number. */
const CUT = 8

const STYLE = `text{font:15px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600;font-size:16px}.quiet{fill:#59636e;font-size:14px}.number{font-weight:600}
.ours{fill:#0969da}.other{fill:#bc4c00}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.ours{fill:#58a6ff}.other{fill:#f0883e}}`

/** The chart of the README. */
export function readmeChart({ ratios }: Pick<Recorded, 'ratios'>): string {
  const unit = (WIDTH - 96) / CUT
  const rows = ROWS.map(({ what, other, id }, at) => {
    const ratio = ratios[id]?.ratio
    if (ratio === undefined) throw new RangeError(`there is no recorded ratio ${id}`)
    const y = HEAD + at * ROW
    const width = Math.min(ratio, CUT) * unit
    const torn = ratio > CUT ? `<path d="M${(width - 14).toFixed(1)} ${y + 24}l6 ${BAR}h-5l-6 -${BAR}z" fill="#8b949e"/>` : ''
    return `<text x="0" y="${y + 18}">${what} <tspan class="quiet">· ${other}</tspan></text><rect class="other" x="0" y="${y + 24}" width="${width.toFixed(1)}" height="${BAR}" rx="2"/><rect class="ours" x="0" y="${y + 24}" width="${unit.toFixed(1)}" height="${BAR}" rx="2"/>${torn}<text class="number" x="${(width + 8).toFixed(1)}" y="${y + 36}">${ratio.toFixed(1)}×</text>`
  })
  const height = HEAD + ROWS.length * ROW + 8
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="How many times as long others take as kvtide"><style>${STYLE}</style><text class="head" x="0" y="18">How many times as long others take as <tspan class="ours">kvtide</tspan></text>${rows.join('')}</svg>\n`
}
