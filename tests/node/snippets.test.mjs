// The snippets of README and docs/start run as they are printed, except their port; tests/python has those of Python.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { serve } from 'tailrope/testing';

import { within } from './kit/raw.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const RUN_MS = 60_000;
// Runs a program that listens, on the port that it is told.
const ON_PORT = `data:text/javascript,${encodeURIComponent(`
import { Server } from 'node:net';
const { listen } = Server.prototype;
Server.prototype.listen = function (port, ...others) {
  return listen.call(this, typeof port === 'number' ? Number(process.env.PORT) : port, ...others);
};
`)}`;

const pages = ['README.md', ...readdirSync(join(root, 'docs/start')).map((name) => `docs/start/${name}`)];
const snippets = pages.flatMap((page) =>
  [...readFileSync(join(root, page), 'utf8').matchAll(/^```js\n(.*?)^```$/gms)].map(([, text]) => ({ page, text })),
);
const isServer = ({ text }) => text.startsWith('// server.mjs');
const isClient = ({ text }) => text.startsWith('// client.mjs');

/** Writes a program where it finds the package, as in a project that has it installed. */
function written(t, text) {
  mkdirSync(join(root, 'target'), { recursive: true });
  const folder = mkdtempSync(join(root, 'target', 'snippet-'));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }));
  const file = join(folder, 'snippet.mjs');
  writeFileSync(file, text);
  return file;
}

/** Runs a program, and resolves to what it printed. */
async function run(t, text) {
  const child = spawn(process.execPath, [written(t, text)], { stdio: ['ignore', 'pipe', 'pipe'] });
  t.after(() => child.kill('SIGKILL'));
  const [out, err] = await within(Promise.all([child.stdout.toArray(), child.stderr.toArray()]), RUN_MS, 'a snippet');
  assert.equal(Buffer.concat(err).toString(), '');
  return Buffer.concat(out).toString();
}

test('each page that tells how to start in Node has a server', () => {
  const found = snippets.filter(isServer).map(({ page }) => page);
  assert.deepEqual(
    found.sort(),
    ['create-mcp-handler', 'express', 'hono', 'serve'].map((name) => `docs/start/${name}.md`),
  );
  assert.equal(snippets.filter(isClient).length, 1);
});

for (const { page, text } of snippets.filter(isServer)) {
  test(`the server of ${page} runs, and its calls survive their connections`, { timeout: 120_000 }, async (t) => {
    const server = await serve([process.execPath, '--import', ON_PORT, written(t, text)], { waitMs: RUN_MS });
    t.after(() => server.close());
    const client = snippets.find(isClient).text.replace('3000', String(server.port));
    const shown = run(t, client);
    const call = await (await server.session()).call('build_report', { pages: 3 });
    assert.deepEqual(await call.untilClosed(), [1, 2]);
    await call.collect();
    call.assertExactlyOnce([1, 2, 3, '3 pages']);
    assert.equal(await shown, 'page 1\npage 2\npage 3\npage 4\npage 5\n5 pages\n');
  });
}

for (const [index, { page, text }] of snippets.filter((each) => !isServer(each) && !isClient(each)).entries()) {
  test(`snippet ${index + 1} of ${page} runs`, { timeout: 120_000 }, async (t) => {
    await run(t, text);
  });
}
