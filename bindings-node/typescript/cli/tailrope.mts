#!/usr/bin/env node
// The command `tailrope`, which the native half has whole.
import { command } from '../native.mjs';

process.exitCode = command(process.argv.slice(2));
