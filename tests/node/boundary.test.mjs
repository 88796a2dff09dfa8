// Whatever is called with whatever: an error of a documented kind, never a crash, never a hang. See kit/boundary.mjs.
//
// `TAILROPE_FUZZ_SECONDS` is how long each kind of calls is made (0.5), `TAILROPE_FUZZ_SEED` which they are (1). They are made
// in a process of its own, so that a crash is a signal that can be seen.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { folderFor } from './kit/addresses.mjs';
import { ours } from './kit/test.mjs';

const SECONDS = Number(process.env.TAILROPE_FUZZ_SECONDS ?? 0.5);
const SEED = process.env.TAILROPE_FUZZ_SEED ?? '1';
const MORE_MS = 50_000;
const program = fileURLToPath(new URL('kit/boundary.mjs', import.meta.url));

// Fewer would mean that the calls no longer fit what is called: so many of them, and so many kinds that were answered.
const ANSWERED = 40;
const CALLS = { values: 100, threads: 100, public: 50 };

for (const [mode, atLeast] of Object.entries(CALLS)) {
  const timeout = SECONDS * 1000 + MORE_MS + 10_000;
  test(`calls with anything throw what is documented: ${mode}`, { timeout, ...ours }, async (t) => {
    const trace = join(folderFor(t), 'trace');
    const child = spawn(process.execPath, [program, mode, SEED, String(SECONDS), trace]);
    const killed = setTimeout(() => child.kill('SIGKILL'), SECONDS * 1000 + MORE_MS);
    const printed = { stdout: '', stderr: '' };
    for (const stream of Object.keys(printed)) {
      child[stream].setEncoding('utf8').on('data', (text) => (printed[stream] += text));
    }
    const ended = await once(child, 'close');
    clearTimeout(killed);
    const made = existsSync(trace) ? readFileSync(trace, 'utf8').split('\n').slice(-6).join('\n') : '';
    const { stdout, stderr } = printed;
    assert.deepEqual(ended, [0, null], `${stdout}\nthe last calls:\n${made}\n${stderr.slice(-4_000)}`);
    assert.doesNotMatch(stderr, /panicked|FATAL/);
    const { calls, findings, answered } = JSON.parse(stdout);
    assert.deepEqual(findings, []);
    assert.ok(calls > atLeast, `${calls} calls`);
    assert.ok(mode !== 'values' || answered.length > ANSWERED, answered.join());
  });
}
