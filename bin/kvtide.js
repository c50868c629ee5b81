#!/usr/bin/env node
import { main } from '../dist/lib/loading/cli.js'

process.exitCode = await main(process.argv.slice(2))
