// Draws bench/readme.svg: the most important ratios, for the README, from the latest record. It must be readable on phones.
import type { Recorded } from './recorded.js'

interface Row {
  readonly what: string
  readonly other: string
  /** The id of the recorded ratio: the other one's time divided by kvtide's. */
  readonly id: string
}

const ROWS: readonly Row[] = [
  {
    what: 'First token, 1,000 of 1,020 cached',
    other: 'onnxruntime-node, the whole prompt again',
    id: 'js-onnx-shared-1000-2/peer-over-found',
  },
  { what: 'A token of a chat of 2,048', other: 'onnxruntime-node', id: 'js-onnx-2048-2/peer-over-graph' },
  { what: 'A token of a chat of 8,192', other: 'onnxruntime-node', id: 'js-onnx-8192-2/peer-over-graph' },
  { what: 'A token of 8 chats of 2,048 at once', other: 'onnxruntime-node', id: 'js-onnx-8x2048-2/peer-over-graph' },
  { what: '8 clients, 256 tokens in and 64 out', other: 'node-llama-cpp', id: 'js-onnx-llama-cpp-8-2/all' },
  {
    what: 'Attention over 8,192 tokens, f32',
    other: 'onnxruntime GroupQueryAttention',
    id: 'js-attention/groupqueryattention-over-ours',
  },
  {
    what: 'Attention over 8,192 tokens, f32',
    other: 'PyTorch scaled_dot_product_attention',
    id: 'js-attention-pytorch/pytorch-over-ours',
  },
  { what: 'Attention over 8,192 tokens, f16', other: 'ggml', id: 'attention-f16/ggml-over-ours' },
]

/** The width of a phone, so that letters are as large as the surrounding text, on phones and on wide pages. */
const WIDTH = 400
const [PADDING, HEAD, ROW, BAR] = [16, 50, 70, 14]
/** The length at which bars are cut, in units of kvtide's bar; a cut bar shows its number. */
const CUT = 8
/** The length of kvtide's bar; after the longest bar there is room for a number. */
const UNIT = (WIDTH - 2 * PADDING - 64) / CUT

/** The chart has a background of its own, because letters in the colours of one theme would be invisible on a page of the other. */
const STYLE = `text{font:16px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600;font-size:17px}.quiet{fill:#59636e;font-size:15px}.number{font-weight:600}
.ground{fill:#fff}.ours{fill:#0969da}.other{fill:#bc4c00}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.quiet{fill:#9198a1}.ours{fill:#58a6ff}.other{fill:#f0883e}}`

function bar(kind: 'ours' | 'other', y: number, width: number): string {
  return `<rect class="${kind}" x="${PADDING}" y="${y}" width="${width.toFixed(1)}" height="${BAR}" rx="2"/>`
}

function drawn({ what, other }: Row, ratio: number, top: number): string {
  const [y, width] = [top + 44, Math.min(ratio, CUT) * UNIT]
  const torn =
    ratio > CUT ? `<path class="ground" d="M${(PADDING + width - 14).toFixed(1)} ${y}l6 ${BAR}h-5l-6 -${BAR}z"/>` : ''
  const words = `<text x="${PADDING}" y="${top + 17}">${what}</text><text class="quiet" x="${PADDING}" y="${top + 37}">${other}</text>`
  return `${words}${bar('other', y, width)}${bar('ours', y, UNIT)}${torn}<text class="number" x="${(PADDING + width + 8).toFixed(1)}" y="${y + 13}">${ratio.toFixed(1)}×</text>`
}

/** Draws the README's chart. */
export function readmeChart({ ratios }: Pick<Recorded, 'ratios'>): string {
  const rows = ROWS.map((row, at) => {
    const ratio = ratios[row.id]?.ratio
    if (ratio === undefined) throw new RangeError(`there is no recorded ratio ${row.id}`)
    return drawn(row, ratio, HEAD + at * ROW)
  })
  const height = HEAD + ROWS.length * ROW + 8
  const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="How many times as long others take as kvtide">`
  const ground = `<rect class="ground" width="${WIDTH}" height="${height}" rx="6"/>`
  return `${head}<style>${STYLE}</style>${ground}<text class="head" x="${PADDING}" y="33">How long others take, <tspan class="ours">kvtide</tspan> = 1×</text>${rows.join('')}</svg>\n`
}
