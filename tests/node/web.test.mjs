// The web-standard classes behind a server that speaks `fetch`: the same tests, some of them. All of them:
// TAILROPE_TEST_TRANSPORT=web npm test
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

import { LINES, TRANSPORT, test } from './kit/test.mjs';

const SCENARIOS = {
  polling: [
    'close cuts the stream in two and loses nothing',
    'closing the standalone stream keeps it',
    'hold of zero is pure polling',
    'question travels on the calls own stream across a poll',
    'stock client loses nothing in twenty polls',
    'ten closes that deliver nothing are survived',
    'three streams cut at once are resumed at once',
    'old sessions get no priming and no early close, 2025-03-26',
    'old sessions still resume, 2025-06-18',
    'keep alives are comments',
  ],
  host: [
    'cancelled request gets its terminal',
    'handlers see the http request',
    'sampling and elicitation work over raw http',
    'json response mode',
    'body limit is 413',
    'dns rebinding is refused also on resumes',
  ],
  isolation: ['f05 a session belongs to its principal'],
  ownership: ['f30 superseded standalone connection is parked and promoted', 'f31 hundred takeovers lose nothing'],
  replay: [
    'f10 resumes of a running emitter lose and repeat nothing',
    'f16 batch whose responses are made while the client is away is resumed whole',
    'f22 reader that leaves during replay leaves nothing behind',
  ],
  backpressure: ['f56 reader that stalls delays no other call', 'f56 stalled standalone reader delays no call'],
  malformed: ['malformed requests are refused'],
};

const skip = TRANSPORT !== 'tailrope' && 'about another transport';
test('the web-standard classes keep it all', { skip, timeout: 120_000 }, () => {
  const names = Object.values(SCENARIOS).flat();
  const here = fileURLToPath(new URL('.', import.meta.url));
  const reporter = `--test-reporter=${here}kit/report.mjs`;
  const patterns = names.map((name) => `--test-name-pattern=^${name}$`);
  const files = Object.keys(SCENARIOS).map((file) => `${file}.test.mjs`);
  // A runner within a runner would report to the outer one.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const done = spawnSync(process.execPath, ['--test', '--test-force-exit', reporter, ...patterns, ...files], {
    cwd: here,
    env: { ...env, TAILROPE_TEST_TRANSPORT: 'web' },
    encoding: 'utf8',
  });
  const ran = done.stdout.trim().split('\n').map((text) => JSON.parse(text)).filter(({ skipped }) => !skipped);
  const failed = ran.filter(({ passed }) => !passed).map(({ name }) => name);
  assert.deepEqual(failed, []);
  assert.deepEqual(ran.map(({ name }) => name).sort(), LINES.flatMap(() => names).sort());
});
