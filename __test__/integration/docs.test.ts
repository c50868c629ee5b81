// Runs the TypeScript examples of the README, of docs/ and of the doc comments, each as a program of its own.
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

import test from 'ava'

const root = fileURLToPath(new URL('../..', import.meta.url))

interface Example {
  readonly name: string
  readonly code: string
  /** The outputs in `console.log(…) // …` comments, if they are plain values. */
  readonly promised: readonly string[]
}

function examplesOf(file: string): Example[] {
  const source = readFileSync(join(root, file), 'utf8')
  const bare = file.endsWith('.ts') ? source.replaceAll(/^ *\* ?/gm, '') : source
  return [...bare.matchAll(/```ts\n([\s\S]*?)```/g)].map(([, code = ''], index) => ({
    name: `${file}, example ${index + 1}`,
    code,
    promised: [...code.matchAll(/console\.log\(.*\) \/\/ ([\d\w. [\],]+)$/gm)]
      .map(([, promise = '']) => promise.trim())
      .filter(promise => /^(\[|\d|null|[A-Z][A-Za-z\d_]+(Array)? \[|[A-Z_]+$)/.test(promise)),
  }))
}

const files = [
  'README.md',
  'index.ts',
  ...['docs', 'lib'].flatMap(folder =>
    readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
      .filter(entry => entry.isFile())
      .map(entry => relative(root, join(entry.parentPath, entry.name))),
  ),
]
/** The pages with examples. */
const pages = [
  'README.md',
  'ARCHITECTURE.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  'SECURITY.md',
  'bench/RESULTS.md',
  ...readdirSync(join(root, 'docs')).map(file => `docs/${file}`),
]

const examples = files.flatMap(examplesOf)

/** A program's output without the spaces and lengths that `console.log` adds. */
function plain(output: string): string {
  return output.replaceAll(/Array\(\d+\)/g, 'Array').replaceAll(/\s+/g, '')
}

/** The folder of the model that the examples of `kvtide/text` run. */
const demo = join(root, 'packages/serve/demo')

function runExample(file: string): Promise<{ code: number | null; output: string }> {
  return new Promise(resolve => {
    // Models that an example would download are replaced by the demo's, or by a stand-in.
    const program = readFileSync(file, 'utf8').replaceAll(
      /TextModel\.load\('[\w.-]+\/[^']+'/g,
      `TextModel.load('${demo}'`,
    )
    writeFileSync(file, program)
    const [, model] = /['"](onnx-community\/[^'"]+)['"]/.exec(program) ?? []
    const standIn =
      model === undefined ? [] : [`--import=${new URL('../support/transformers/stand-in.ts', import.meta.url).href}`]
    // Programs that take a model's folder get the demo's; those that read lines get one.
    const child = spawn(process.execPath, ['--import=tsx', ...standIn, file, demo], {
      cwd: root,
      env: { ...process.env, ...(model !== undefined && { KVTIDE_STAND_IN: model }) },
    })
    child.stdin.on('error', () => undefined)
    child.stdin.end('Tell me a story.\n')
    let output = ''
    child.stdout.on('data', (chunk: Buffer) => (output += chunk))
    child.stderr.on('data', (chunk: Buffer) => (output += chunk))
    child.on('close', code => resolve({ code, output }))
  })
}

// Inside the package, so that `kvtide` resolves to the package itself.
mkdirSync(join(root, 'target'), { recursive: true })
const folder = mkdtempSync(join(root, 'target', 'examples-'))
test.after.always(() => {
  rmSync(folder, { recursive: true, force: true })
  for (const saved of readdirSync(root).filter(file => file.endsWith('.kv'))) rmSync(join(root, saved))
})

test('every page and picture that a page points to is there', t => {
  for (const file of pages) {
    const text = readFileSync(join(root, file), 'utf8')
    for (const [, target = ''] of text.matchAll(/\]\((?!https?:|#)([^)#]+)/g)) {
      t.true(existsSync(join(root, dirname(file), target)), `${file} points to ${target}`)
    }
    // Pages that npm shows use absolute addresses.
    for (const [, target = ''] of text.matchAll(
      /\]\(https:\/\/(?:github\.com\/kvtide\/kvtide\/blob|raw\.githubusercontent\.com\/kvtide\/kvtide)\/main\/([^)#]+)/g,
    )) {
      t.true(existsSync(join(root, target)), `${file} points to ${target}`)
    }
    if (file === 'README.md')
      t.notRegex(text, /\]\((?!https?:|#)/, 'npm shows it as well, where no file lies beside it')
  }
})

test('there are examples to run', t => {
  t.true(examples.length >= 10)
  t.true(examples.flatMap(example => example.promised).length >= 8)
})

/** Compiler options of a reader's project: as strict as possible, but without options that only libraries need. */
const STRICT = {
  strict: true,
  noEmit: true,
  target: 'ES2022',
  lib: ['ES2023', 'ESNext.Disposable', 'DOM', 'DOM.Iterable', 'DOM.AsyncIterable'],
  module: 'NodeNext',
  moduleDetection: 'force',
  types: ['node'],
  skipLibCheck: true,
}

test.serial('every example compiles under --strict, and names where it does not', t => {
  const strict = join(folder, 'strict')
  mkdirSync(strict)
  for (const [index, { code }] of examples.entries()) writeFileSync(join(strict, `example-${index}.ts`), code)
  writeFileSync(join(strict, 'tsconfig.json'), JSON.stringify({ compilerOptions: STRICT, include: ['*.ts'] }))
  const { stdout } = spawnSync(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', strict], {
    cwd: strict,
    encoding: 'utf8',
  })
  t.deepEqual(
    stdout
      .split('\n')
      .filter(Boolean)
      .map(line => line.replace(/.*example-(\d+)\.ts/, (_, index: string) => examples[Number(index)]?.name ?? '')),
    [],
  )
})

test('every crate that the Rust guide uses is among the dependencies that it lists', t => {
  const guide = readFileSync(join(root, 'docs/rust.md'), 'utf8')
  const blocks = (language: string): string =>
    [...guide.matchAll(new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``, 'g'))].map(([, code]) => code).join('\n')
  const listed = new Set(
    [...blocks('toml').matchAll(/^([\w-]+) *=/gm)].map(([, name = '']) => name.replaceAll('-', '_')),
  )
  const used = [...blocks('rust').matchAll(/\b(?:use|extern crate) +(\w+)|\b(\w+)::/g)]
    .map(([, one, other]) => one ?? other ?? '')
    .filter(name => /^(?:kvtide|candle)_/.test(name))
  t.true(used.length > 2)
  t.deepEqual(
    [...new Set(used)].filter(name => !listed.has(name)),
    [],
  )
})

for (const [index, { name, code, promised }] of examples.entries()) {
  test.serial(name, async t => {
    const file = join(folder, `example-${index}.ts`)
    writeFileSync(file, code)
    const { code: exit, output } = await runExample(file)
    t.is(exit, 0, output)
    for (const promise of promised) t.true(plain(output).includes(plain(promise)), `${promise} is not in:\n${output}`)
  })
}

test('docs/hybrid.md lists the families that a config may have', t => {
  const [, list = ''] =
    /`model_type` in a `config.json`: ([\w\s,]+)\./.exec(readFileSync(join(root, 'docs/hybrid.md'), 'utf8')) ?? []
  const classes = join(root, 'crates/kvtide-core/tests/model/transformers/5.23.0.json')
  const recorded = Object.entries<{ cases: { is: { states?: object } | null }[] }>(
    JSON.parse(readFileSync(classes, 'utf8')),
  )
  const known = recorded.filter(([, { cases }]) => !cases.some(({ is }) => is?.states !== undefined))
  t.deepEqual(list.split(/,\s+/), known.map(([family]) => family).toSorted())
})
