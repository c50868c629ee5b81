// Runs at the end of `npm ci` in a checkout: builds the addon in release mode, then the TypeScript layer.
import { exists, must } from './steps.mjs'

if (!exists('cargo')) {
  console.error(
    'kvtide is built from source here and needs Rust: install it from https://rustup.rs, then run npm ci again.',
  )
  process.exit(1)
}
await must('npm', ['run', '--silent', 'build:addon'])
await must('npm', ['run', '--silent', 'build:ts'])
