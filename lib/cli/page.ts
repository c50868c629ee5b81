// An HTML page with a text and a bar chart, in one file without external resources.

interface Bar {
  readonly name: string
  readonly value: number
}

const STYLE = `:root{color-scheme:light dark;--ink:#1f2328;--quiet:#59636e;--page:#fff;--bar:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--quiet:#9198a1;--page:#0d1117;--bar:#58a6ff}}
body{margin:2rem auto;max-width:46rem;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
h1{font-size:1.3rem}pre{overflow-x:auto;font-size:.85rem}h2{font-size:1rem;margin-top:2rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.35rem .8rem;margin:0}dt{color:var(--quiet)}dd{margin:0;display:flex;align-items:center;gap:.5rem}
dd i{display:block;height:1rem;background:var(--bar);min-width:1px}`

const escape = (words: string): string => words.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

/** @internal */
export function barPage(title: string, text: string, caption: string, bars: readonly Bar[]): string {
  const most = Math.max(1, ...bars.map(bar => bar.value))
  const rows = bars.map(
    ({ name, value }) =>
      `<dt>${escape(name)}</dt><dd><i style="width:${((value / most) * 75).toFixed(1)}%"></i>${value.toLocaleString('en')}</dd>`,
  )
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${escape(title)}</title><style>${STYLE}</style></head>
<body><h1>${escape(title)}</h1><pre>${escape(text)}</pre><h2>${escape(caption)}</h2><dl>${rows.join('')}</dl></body></html>
`
}
