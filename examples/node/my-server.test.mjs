// Tests of a server of your own, here of the examples beside this file. Run them with `node --test my-server.test.mjs`.
//
// The calls are cut, closed and resumed by the test, and the server is killed; `tailrope/testing` then says whether each
// message came once, in order.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { McpServer } from '@modelcontextprotocol/server';

import { NodeStreamableHTTPServerTransport } from 'tailrope/mcp';
import { serve } from 'tailrope/testing';

const REPORT = [1, 2, 3, 4, 5, 6, '6 pages'];

/** A process of its own, which can be killed; PORT tells it where to listen. */
async function start(t) {
  const folder = mkdtempSync(join(tmpdir(), 'my-server-'));
  const file = fileURLToPath(new URL('durable.mjs', import.meta.url));
  const server = await serve(file, { env: { STORE: `sqlite:${join(folder, 'events.db')}` } });
  t.after(async () => {
    await server.close();
    rmSync(folder, { recursive: true });
  });
  return server;
}

test('a cut connection loses nothing', async (t) => {
  const server = await start(t);
  const session = await server.session();
  const call = await session.call('build_report', { pages: 6 });
  await call.cut(2);
  await call.resume();
  await call.cut(1);
  // Back from further behind: what follows that id comes again, and nothing else.
  await call.resume(call.ids[1]);
  await call.collect();
  call.assertExactlyOnce(REPORT);
});

test('a killed server still has what was sent', async (t) => {
  const server = await start(t);
  const session = await server.session();
  const call = await session.call('build_report', { pages: 6 });
  assert.deepEqual(await call.untilClosed(), [1, 2, 3]);
  const cursor = call.ids.at(-2);
  await call.collect();
  await server.restart();
  await call.resume(cursor);
  await call.collect();
  call.assertExactlyOnce(REPORT);
});

test('a handler in this process', async (t) => {
  const transport = new NodeStreamableHTTPServerTransport({ sessionIdGenerator: () => randomUUID() });
  const mine = new McpServer({ name: 'mine', version: '1.0.0' });
  mine.registerTool('greet', {}, async (ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (const progress of [1, 2]) {
      await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress } });
      ctx.http.closeSSE?.({ retryMs: 10 });
    }
    return { content: [{ type: 'text', text: 'hello' }] };
  });
  await mine.connect(transport);
  // An express application is such a handler too.
  const server = await serve((req, res) => transport.handleRequest(req, res));
  t.after(async () => {
    await server.close();
    await mine.close();
  });
  const session = await server.session();
  const call = await session.call('greet');
  await call.collect();
  call.assertExactlyOnce([1, 2, 'hello']);
});
