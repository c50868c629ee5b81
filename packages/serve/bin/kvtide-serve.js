#!/usr/bin/env node
import { main } from '../dist/lib/command/main.js'

process.exitCode = await main(process.argv.slice(2))
