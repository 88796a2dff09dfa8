// The command `tailrope` of this package, which is native: tests/rust/probe.rs says what it does.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { ours, test } from './kit/test.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const vectors = JSON.parse(readFileSync(join(root, 'tests/vectors/probe.json'), 'utf8'));

test('the command prints what the vectors say', ours, async (t) => {
  const own = join(root, '.venv/mcp2/bin/python');
  const faulty = spawn(existsSync(own) ? own : 'python3', ['-m', 'raw_server.faulty'], {
    cwd: join(root, 'tests/client'),
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  // It ends with its input.
  t.after(() => faulty.stdin.end());
  const [line] = await once(createInterface(faulty.stdout), 'line');
  const url = `http://127.0.0.1:${line.split(' ')[1]}/node/unknown-404`;
  const child = spawn(process.execPath, [
    join(root, 'bindings-node/lib/cli/tailrope.mjs'),
    'probe',
    url,
    '--only',
    'ping,made-up-cursor',
  ]);
  const printed = { stdout: '', stderr: '' };
  for (const stream of Object.keys(printed)) {
    child[stream].setEncoding('utf8').on('data', (text) => (printed[stream] += text));
  }
  const [status] = await once(child, 'close');
  assert.deepEqual([status, printed.stderr], [1, '']);
  assert.deepEqual(printed.stdout.trimEnd().split('\n'), [`${url}: faulty 1, 2025-11-25`, ...vectors.text]);
});
