// The charts of the inspector, drawn with uPlot.
import uPlot from 'uplot'

import { element } from './html.js'

const CHARTS = [
  { title: 'Prefix cache hit rate, %', range: [0, 100] },
  { title: 'Evictions per second', range: undefined },
  { title: 'MiB in use', range: undefined },
] as const
const HEIGHT = 150

/** Hours, minutes and seconds. */
const time = (seconds: number): string => new Date(1000 * seconds).toTimeString().slice(0, 8)

type Series = readonly (number | null)[]

/** Charts over time, which adapt to the reader's theme and the width of the page. */
export function charts(into: HTMLElement): {
  draw(times: readonly number[], series: readonly Series[]): void
  restyle(): void
} {
  let plots: uPlot[] = []
  let last: readonly [times: readonly number[], series: readonly Series[]] = [[], CHARTS.map(() => [])]

  const boxes = CHARTS.map(({ title }) => element('div', { className: 'chart' }, element('h3', {}, title)))
  into.replaceChildren(...boxes)

  const data = (at: number): uPlot.AlignedData => [last[0] as number[], last[1][at] as (number | null)[]]

  function restyle(): void {
    plots.forEach(plot => plot.destroy())
    const style = getComputedStyle(document.body)
    const [ink, line, accent] = ['--quiet', '--line', '--accent'].map(name => style.getPropertyValue(name)) as [
      string,
      string,
      string,
    ]
    plots = CHARTS.map(({ range }, at) => {
      const box = boxes[at] as HTMLElement
      const axis = {
        stroke: ink,
        grid: { stroke: line, width: 1 },
        ticks: { stroke: line, width: 1 },
        font: '11px system-ui',
      }
      const options: uPlot.Options = {
        width: Math.max(200, box.clientWidth - 14),
        height: HEIGHT,
        cursor: { show: false },
        scales: {
          y: range === undefined ? { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } : { range: [...range] },
        },
        axes: [
          { ...axis, space: 76, values: (_, times) => times.map(time) },
          { ...axis, size: 52 },
        ],
        series: [{}, { stroke: accent, width: 1.5, fill: `${accent}22`, spanGaps: true, points: { show: false } }],
      }
      return new uPlot(options, data(at), box)
    })
  }

  restyle()
  new ResizeObserver(() =>
    plots.forEach((plot, at) =>
      plot.setSize({ width: Math.max(200, (boxes[at] as HTMLElement).clientWidth - 14), height: HEIGHT }),
    ),
  ).observe(into)
  return {
    draw(times, series) {
      last = [times, series]
      plots.forEach((plot, at) => plot.setData(data(at)))
    },
    restyle,
  }
}
