// bench/pool.svg: what the pool's calls cost over the blocks of the pool, one panel per group of calls, both axes log; then what
// the calls on prompts cost more than in the smallest pool, in random reads of memory.
import { drawnAt, PANEL_HEIGHT, STYLE, type Kind, type Line, type Panel } from './panel.js'
import { callsOf, GROUPS, growthOf, PROMPTS, type Call, type Group, type Measured } from './pool.js'
import { axisOf, GAP, PANEL_WIDTH, svgOf, text, time, type Axis } from './svg.js'
import { digits } from './table.js'

const TOP = 28
const BELOW = 'blocks of the pool'

const KINDS: readonly Kind[] = ['call0', 'call1', 'call2', 'call3']

/** What the times of a group are for. */
function unitsOf(calls: readonly Call[]): string {
  const units = [...new Set(calls.map(({ per }) => per))]
  if (units.length === 1) return `per ${units[0]}`
  return units.map(unit => `${calls.filter(({ per }) => per === unit).map(({ name }) => name).join(', ')}: per ${unit}`).join('; ')
}

const lineOf = (name: string, kind: Kind, { sizes }: Call): Line => ({ name, kind, points: sizes, end: time(sizes.at(-1)?.median ?? Number.NaN) })

/** The times of a group's calls. */
function times(measured: Measured, group: Group, axis: Axis): Panel {
  const { calls, read } = callsOf(measured, group)
  return {
    title: group.title,
    subtitle: unitsOf(calls),
    places: measured.blocks.map(digits),
    below: BELOW,
    ticks: axis.decades.map(decade => [decade, time(decade)] as const),
    height: axis.place,
    lines: [lineOf('random read', 'read', read), ...calls.map((call, index) => lineOf(call.name, KINDS[index] as Kind, call))],
    ...(group.goal !== undefined && { goal: { value: group.goal, says: `goal: under ${time(group.goal)}` } }),
  }
}

/** What the calls of a group cost more than in the smallest pool. */
function growth(measured: Measured, group: Group): Panel {
  const { calls, read } = callsOf(measured, group)
  const lines = calls.map(({ name, rounds }, index): Line => {
    const points = growthOf(rounds, read.rounds)
    return { name, kind: KINDS[index] as Kind, points, end: `${(points.at(-1)?.median ?? Number.NaN).toFixed(1)} reads` }
  })
  const all = lines.flatMap(({ points }) => points.flatMap(({ median, p10, p90 }) => [median, p10, p90]))
  // A spread that reaches a little below nothing needs no tick of its own.
  const [low, high] = [Math.min(0, Math.floor(Math.min(...all) + 0.25)), Math.ceil(Math.max(1, ...all))]
  const ticks = Array.from({ length: high - low + 1 }, (_, index) => low + index)
  return {
    title: `${group.title}: growth since ${digits(measured.blocks[0] ?? Number.NaN)} blocks`,
    subtitle: 'per block, in random reads of memory of that size; flat is O(1)',
    places: measured.blocks.slice(1).map(digits),
    below: BELOW,
    ticks: ticks.filter(tick => tick % Math.ceil(ticks.length / 12) === 0).map(tick => [tick, String(tick)] as const),
    height: value => (value - low) / (high - low),
    lines,
  }
}

/** The chart, as the text of an SVG file. */
export function poolChart(measured: Measured): string {
  // One axis for all times, so that heights compare.
  const all = GROUPS.flatMap(group => {
    const { calls, read } = callsOf(measured, group)
    return [...calls, read].flatMap(({ sizes }) => sizes.flatMap(({ median, p10, p90 }) => [median, p10, p90]))
  })
  const axis = axisOf(all)
  const panels = [...GROUPS.map(group => times(measured, group, axis)), growth(measured, PROMPTS)]
  const drawn = panels.map((panel, index) => drawnAt(panel, (index % 2) * (PANEL_WIDTH + GAP), TOP + Math.floor(index / 2) * (PANEL_HEIGHT + GAP)))
  const legend = text(0, 14, 'log axes, less is better; bars from the lowest tenth of the rounds to the highest; dashed: one random read of memory as large as the bookkeeping', 'small')
  const title = 'What the calls of the pool cost as the pool grows, beside one random read of memory of the same size'
  return svgOf(TOP + Math.ceil(panels.length / 2) * (PANEL_HEIGHT + GAP) - GAP, title, STYLE, [legend, ...drawn])
}
