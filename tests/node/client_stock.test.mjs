// The unmodified clients of both SDK lines with the one line, on connections that are cut. (F-70, F-73, F-80)
import assert from 'node:assert/strict';
import http from 'node:http';

import { resumableFetch } from 'tailrope/client';
import { listen, newGate, open, serve } from '../servers/node/transports.mjs';
import { CLIENTS, connect } from './kit/clients.mjs';
import { until, upTo, within } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const QUICK = { jitter: 0, initialDelayMs: 1 };

/** A proxy that cuts the answers to tool calls and to resumes in the middle, after so many bytes. */
async function cutting(port, bytes) {
  const cuts = [];
  const host = await listen((req, res) => {
    const chunks = [];
    req.on('data', (chunk) => chunks.push(chunk));
    req.on('end', () => {
      const body = Buffer.concat(chunks);
      const isCut = body.includes('tools/call') || req.headers['last-event-id'] !== undefined;
      const { method, url: path, headers } = req;
      const behind = http.request({ host: '127.0.0.1', port, method, path, headers, agent: false }, (answer) => {
        res.writeHead(answer.statusCode, answer.headers);
        res.flushHeaders();
        let left = isCut ? bytes : Infinity;
        answer.on('data', (chunk) => {
          res.write(chunk.subarray(0, left));
          left -= chunk.length;
          if (left <= 0) {
            cuts.push(path);
            behind.destroy();
            res.socket.end();
          }
        });
        answer.on('end', () => res.end());
        answer.on('error', () => res.destroy());
      });
      behind.on('error', () => res.destroy());
      res.on('close', () => behind.destroy());
      behind.end(body);
    });
  });
  return { ...host, cuts };
}

/** A stock client with the one line, behind a proxy that cuts. */
async function stock(t, which, line, options) {
  const server = await serve(line);
  t.after(() => server.close());
  const proxy = await cutting(server.port, 2_000);
  t.after(() => proxy.close());
  const client = await connect(which, proxy.port, '/mcp', undefined, (fetch) => resumableFetch(fetch, options));
  t.after(() => client.close());
  return { server, proxy, client };
}

for (const which of CLIENTS) {
  const line = LINES.at(which === CLIENTS[0] ? 0 : -1);

  test(`stock client survives breaks: ${which}`, ours, async (t) => {
    const { proxy, client } = await stock(t, which, line, QUICK);
    const steps = ['emit 30', 'close', 'emit 10', 'close_standalone', 'standalone s', 'return x'];
    assert.equal(await within(client.script(...steps), 60_000), 'x');
    assert.deepEqual(client.progress, upTo(40));
    await until(() => client.logs.length > 0);
    assert.deepEqual(client.logs, ['s']);
    assert.ok(proxy.cuts.length >= 3, `${proxy.cuts.length} cuts`);
  });

  test(`stock client survives ten closes that deliver nothing: ${which}`, ours, async (t) => {
    const { client } = await stock(t, which, line, QUICK);
    const before = client.gets;
    const name = newGate();
    const call = client.script('close hold=0', `gate ${name}`, 'emit 2', 'return x');
    await until(() => client.gets >= before + 10);
    open(name);
    assert.equal(await call, 'x');
    assert.deepEqual(client.progress, [1, 2]);
  });

  test(`stock client fails in time: ${which}`, ours, async (t) => {
    const { proxy, client } = await stock(t, which, line, { ...QUICK, maxAttempts: 3 });
    const call = assert.rejects(client.script('emit 1', 'sleep 5000'), /tries to resume/);
    await until(() => client.progress.length > 0);
    await proxy.close();
    await within(call);
  });
}
