// report.html: the table and charts of one run, in one file that loads nothing else.
import type { Answer } from './sides.js'
import type { Way } from './workload.js'

interface Run {
  readonly summary: string
  readonly rows: readonly (readonly string[])[]
  readonly requests: readonly {
    readonly way: Way
    readonly question: string
    readonly answers: readonly [plain: Answer, cached: Answer]
  }[]
}

interface Chart {
  readonly title: string
  readonly unit: string
  readonly of: (answer: Answer) => number
}

const CHARTS: readonly Chart[] = [
  { title: 'Tokens through the model', unit: 'tokens', of: answer => answer.computed },
  { title: 'Time to the first token, ms', unit: 'ms', of: answer => answer.first },
]

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [720, 220, 44, 56]

const escape = (words: string): string => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
const at = (value: number): string => value.toFixed(1)

/** Returns a round upper limit for the axis: 1, 2, 2.5, 5 or 10 times a power of ten. */
function ceiling(most: number): number {
  const size = 10 ** Math.floor(Math.log10(most))
  return ([1, 2, 2.5, 5].find(step => step * size >= most) ?? 10) * size
}

/** Draws two bars for each request. */
function chart({ title, unit, of }: Chart, requests: Run['requests']): string {
  const top = ceiling(Math.max(...requests.flatMap(({ answers }) => answers.map(of))))
  const y = (value: number): number => 8 + (HEIGHT - BOTTOM) * (1 - value / top)
  const step = (WIDTH - LEFT - 8) / requests.length
  const grid = [0, 0.5, 1].map(
    share =>
      `<path class="grid" d="M${LEFT} ${at(y(share * top))}H${WIDTH}"/><text x="${LEFT - 6}" y="${at(y(share * top) + 4)}" text-anchor="end">${share * top}</text>`,
  )
  const bars = requests.map(({ way, answers }, place) => {
    const x = LEFT + place * step
    const bar = (answer: Answer, side: number): string => {
      const words = `${place + 1}, ${way}: ${['onnxruntime-node', 'kvtide'][side]} ${Number(of(answer).toFixed(2))} ${unit}`
      return `<rect class="side${side}" x="${at(x + 2 + (side * (step - 4)) / 2)}" y="${at(y(of(answer)))}" width="${at((step - 4) / 2 - 1)}" height="${at(y(0) - y(of(answer)))}"><title>${escape(words)}</title></rect>`
    }
    const label = way === 'question' ? String(place + 1) : way
    const minor = place === 0 || (place + 1) % 5 === 0 ? '' : ' class="minor"'
    const turned =
      way === 'question'
        ? `<text${minor} x="${at(x + step / 2)}" y="${at(y(0) + 18)}" text-anchor="middle">${label}</text>`
        : `<text transform="translate(${at(x + step / 2 + 4)} ${at(y(0) + 14)}) rotate(-40)" text-anchor="end">${label}</text>`
    return answers.map(bar).join('') + turned
  })
  return `<figure><figcaption>${title}</figcaption><div class="scroll"><svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${title} of each request">${grid.join('')}${bars.join('')}</svg></div></figure>`
}

const STYLE = `:root{color-scheme:light dark;--ink:#1f2328;--quiet:#59636e;--line:#d1d9e0;--page:#fff;--one:#bc4c00;--two:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--quiet:#9198a1;--line:#3d444d;--page:#0d1117;--one:#f0883e;--two:#58a6ff}}
body{margin:2rem auto;max-width:46rem;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
h1{font-size:1.3rem}h2{font-size:1rem}dt{color:var(--quiet)}dd{margin:0 0 .6rem}p.lead{font-size:1.15rem}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--line);text-align:right}th:first-child,td:first-child{text-align:left}td{white-space:nowrap}td:first-child{white-space:normal}
figure{margin:2rem 0}figcaption{font-weight:600;margin-bottom:.3rem}.scroll{overflow-x:auto}svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--quiet)}.grid{stroke:var(--line)}.side0{fill:var(--one)}.side1{fill:var(--two)}
.key span::before{content:"";display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 1em;background:var(--one)}.key span+span::before{background:var(--two)}
@media(max-width:34rem){th,td{padding:.35rem .2rem;font-size:.85rem}figure .scroll,svg{overflow:visible}figcaption{margin-bottom:.6rem}svg text{font-size:18px}.minor{display:none}}`

export function page({ summary, rows, requests }: Run): string {
  const [head = [], ...body] = rows
  const cells = (tag: 'th' | 'td', row: readonly string[]): string =>
    `<tr>${row.map(cell => `<${tag}>${escape(cell)}</${tag}>`).join('')}</tr>`
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>kvtide: the same questions without it and with it</title><style>${STYLE}</style></head>
<body><h1>The same questions, without kvtide and with it</h1><p class="lead">${escape(summary)}</p>
<div class="scroll"><table><thead>${cells('th', head)}</thead><tbody>${body.map(row => cells('td', row)).join('')}</tbody></table></div>
<p class="key"><span>onnxruntime-node</span><span>kvtide</span></p>
${CHARTS.map(of => chart(of, requests)).join('\n')}
<h2>Questions and answers</h2>
<dl>${requests.map(({ question, answers: [{ text }] }) => `<dt>${escape(question)}</dt><dd>${escape(text)}</dd>`).join('')}</dl>
</body></html>
`
}
