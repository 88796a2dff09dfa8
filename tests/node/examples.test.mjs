// Every example runs as a user would run it and serves an official client through a call that closes its connection.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as v2 from '@modelcontextprotocol/client';
import * as v1 from '@modelcontextprotocol/sdk/client/index.js';
import * as v1Http from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { serve } from 'tailrope/testing';

import { folderFor } from './kit/addresses.mjs';
import { counts, ids, Peer, within } from './kit/raw.mjs';

const EXAMPLES = fileURLToPath(new URL('../../examples/node/', import.meta.url));
const PAGES = 20;
const START_MS = 30_000;
const CALL_MS = 30_000;
const END_MS = 15_000;
const timeout = 90_000;

// Which client calls an example. A new file in the folder must be named here.
const CLIENTS = {
  cluster: 2,
  drain: 2,
  durable: 2,
  express: 2,
  fastify: 2,
  hono: 2,
  'own-event-store': 2,
  'resumable-handler': 2,
  'server-v1': 1,
  'server-v2': 2,
};

// Which server the examples of clients call, and what their users see of a call that is resumed.
const CALLED = { 'resumable-client': 'server-v2', 'resumable-client-v1': 'server-v1' };

// A user's tests of the others.
const TESTS = ['my-server.test'];

const upTo = (count) => Array.from({ length: count }, (_, index) => index + 1);

/** Starts an example and waits until it says where it listens; it is killed if the test has not ended it. */
async function start(t, name) {
  const store = `sqlite:${join(folderFor(t), 'events.db')}`;
  const child = spawn(process.execPath, [`${EXAMPLES}${name}.mjs`], {
    env: { ...process.env, PORT: '0', STORE: store },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit').then(([code, signal]) => code ?? signal);
  t.after(() => {
    child.kill('SIGKILL');
    return exited;
  });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const { value } = await within(lines.next(), START_MS, `start of ${name}`);
  assert.match(value ?? '', /^http:\/\/127\.0\.0\.1:\d+\/mcp$/);
  return { child, url: new URL(value), exited: () => within(exited, END_MS, `end of ${name}`) };
}

/** Calls the tool with an unmodified client: what it was told, and how often it came back for more. */
async function call(line, url, clientOptions) {
  const seen = { progress: [], resumes: 0 };
  const counting = (input, init) => {
    seen.resumes += new Headers(init?.headers).has('last-event-id') ? 1 : 0;
    return fetch(input, init);
  };
  const Transport = (line === 1 ? v1Http : v2).StreamableHTTPClientTransport;
  const client = new (line === 1 ? v1 : v2).Client({ name: 'examples', version: '1' }, clientOptions);
  await client.connect(new Transport(url, { fetch: counting }));
  const options = { onprogress: ({ progress }) => seen.progress.push(progress), timeout: CALL_MS };
  const request = { name: 'build_report', arguments: { pages: PAGES } };
  const result = await (line === 1 ? client.callTool(request, undefined, options) : client.callTool(request, options));
  const revision = line === 1 ? undefined : client.getNegotiatedProtocolVersion();
  await client.close();
  return { ...seen, text: result.content[0].text, revision };
}

test('every example is run', () => {
  const names = readdirSync(EXAMPLES).map((file) => file.replace(/\.mjs$/, ''));
  assert.deepEqual(names.sort(), [...Object.keys(CLIENTS), ...Object.keys(CALLED), ...TESTS].sort());
});

for (const [name, line] of Object.entries(CLIENTS)) {
  test(`${name} loses nothing over a close`, { timeout }, async (t) => {
    const { url } = await start(t, name);
    const { progress, text, resumes } = await call(line, url);
    assert.deepEqual([progress, text], [upTo(PAGES), `${PAGES} pages`]);
    assert.ok(resumes >= 1, 'the client never came back, so nothing was shown');
  });
}

for (const [name, server] of Object.entries(CALLED)) {
  test(`${name} loses nothing over a close`, { timeout }, async (t) => {
    const { url } = await start(t, server);
    const child = spawn(process.execPath, [`${EXAMPLES}${name}.mjs`, url.href], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    t.after(() => child.kill('SIGKILL'));
    const exited = once(child, 'exit');
    const text = Buffer.concat(await within(child.stdout.toArray(), CALL_MS, name)).toString();
    const pages = [...text.matchAll(/^page (\d+) of 20$/gm)].map(([, page]) => Number(page));
    // In the process that goes on the newest page may come again: a token is never ahead of what was read.
    const repeated = pages.length - new Set(pages).size;
    assert.deepEqual([...new Set(pages)], upTo(PAGES), text);
    assert.ok(repeated <= (/^stopped/m.test(text) ? 1 : 0), text);
    assert.match(text, /^20 pages$/m);
    assert.match(text, /^resume after \S+/m);
    assert.deepEqual(await within(exited, END_MS, `end of ${name}`), [0, null]);
  });
}

for (const name of TESTS) {
  test(`${name} passes`, { timeout }, async (t) => {
    // In a process that is told it runs a test file, `--test` would run nothing.
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const child = spawn(process.execPath, ['--test', '--test-reporter=tap', `${EXAMPLES}${name}.mjs`], {
      env,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    t.after(() => child.kill('SIGKILL'));
    const exited = once(child, 'exit');
    const text = Buffer.concat(await within(child.stdout.toArray(), timeout, name)).toString();
    assert.deepEqual(await within(exited, END_MS, `end of ${name}`), [0, null], text);
    assert.match(text, /^# pass 3$/m);
  });
}

test('resumable-handler makes clients of 2026-07-28 fall back to what can be resumed', { timeout }, async (t) => {
  const { url } = await start(t, 'resumable-handler');
  const seen = await call(2, url, { versionNegotiation: { mode: 'auto' } });
  assert.deepEqual(seen, { progress: upTo(PAGES), resumes: 1, text: `${PAGES} pages`, revision: '2025-11-25' });
});

test('f44 drain ends its streams with an id and a retry, and the process with 0', { timeout }, async (t) => {
  const { child, url, exited } = await start(t, 'drain');
  const peer = await Peer.open(Number(url.port));
  // Long enough that the tool itself closes nothing meanwhile.
  const reply = await peer.call('build_report', { pages: 2_000 });
  const events = await reply.some(2);
  child.kill('SIGTERM');
  events.push(...(await within(reply.rest(), END_MS)));
  assert.equal(reply.broken, false);
  assert.deepEqual(counts(events), upTo(counts(events).length));
  assert.ok(events.every((event) => !event.isTerminal));
  // The client knows where to go on, and when: not before the restart. Where it is, it has every event before.
  const { id, retry } = Object.assign({}, ...events);
  assert.ok(id !== undefined && retry >= 5_000, JSON.stringify(events.at(-1)));
  assert.equal(id, ids(events.filter((event) => event.message !== undefined)).at(-1));
  assert.equal(await exited(), 0);
});

test('drain ends at once when nothing is open', { timeout }, async (t) => {
  const { child, url, exited } = await start(t, 'drain');
  assert.equal((await call(2, url)).text, `${PAGES} pages`);
  child.kill('SIGTERM');
  assert.equal(await exited(), 0);
});

test('cluster serves a session by any of its workers', { timeout }, async (t) => {
  const { url } = await start(t, 'cluster');
  // Each request of it has a connection of its own, and so another worker.
  const peer = await Peer.open(Number(url.port));
  for (const pages of [2, 3, 4]) {
    const events = await (await peer.call('build_report', { pages })).rest();
    events.push(...(await (await peer.resume(ids(events).at(-1))).untilTerminal()));
    assert.deepEqual(counts(events), upTo(pages));
  }
  assert.equal((await peer.delete()).status, 200);
});

test('durable gives clients what they missed after a kill, and beside a running process', { timeout }, async (t) => {
  const env = { STORE: `sqlite:${join(folderFor(t), 'events.db')}` };
  const [server, beside] = await Promise.all([1, 2].map(() => serve(`${EXAMPLES}durable.mjs`, { env })));
  t.after(() => Promise.all([server.close(), beside.close()]));
  const call = await (await server.session()).call('build_report', { pages: 4 });
  assert.deepEqual(await call.untilClosed(), [1, 2]);
  await call.resume(call.ids[0], { at: beside.url });
  await call.untilClosed();
  await server.restart();
  await call.resume(call.ids[0]);
  await call.collect();
  assert.deepEqual(
    call.connections.map(({ messages }) => messages.length),
    [2, 5, 5, 5],
  );
  call.assertExactlyOnce([...upTo(4), '4 pages']);
});
