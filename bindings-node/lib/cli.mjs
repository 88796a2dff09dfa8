#!/usr/bin/env node
// The command `tailrope`. It needs no native half.
import { main } from './probe-cli.mjs';

process.exitCode = await main(process.argv.slice(2));
