#!/usr/bin/env node
// The command `tailrope`, which the native half has whole.
import { probe } from '../native.mjs';

process.exitCode = probe(process.argv.slice(2));
