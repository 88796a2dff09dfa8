// A Node worker: an ordinary node:http server of the TypeScript SDK 2.x with the tool of worker.py. The lines that matter
// are at the end.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { McpServer } from '@modelcontextprotocol/server';
import { configure, createResumableMcpHandler, openStore, setLog } from 'tailrope/mcp';
import * as z from 'zod';

const FILES = 300;
const RUN_MS = 3_000;
const CLOSE_AT_MS = [800, 2_000];

const { values: options } = parseArgs({
  options: { port: { type: 'string' }, store: { type: 'string' }, 'owner-lost-ms': { type: 'string' } },
});

/** One line per fact for the timeline, stamped with the machine's monotonic clock. */
function report(what, fields = {}) {
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()) / 1e9, what, ...fields }));
}

/** Index some files, reporting each one, and drop the connection now and then. */
async function indexFiles({ call }, ctx) {
  report('start', { call });
  const began = performance.now();
  const closes = [...CLOSE_AT_MS];
  for (let number = 1; number <= FILES; number++) {
    // On a busy machine the next file may already be due.
    await sleep(Math.max(0, began + (RUN_MS * number) / FILES - performance.now()));
    const { progressToken } = ctx.mcpReq._meta;
    const params = { progressToken, progress: number, total: FILES, message: `file ${number}` };
    await ctx.mcpReq.notify({ method: 'notifications/progress', params });
    if (performance.now() - began >= closes[0]) {
      closes.shift();
      // Where the call is a task there is no connection, and this does nothing.
      ctx.http.closeSSE?.();
    }
  }
  report('finish', { call });
  return { content: [{ type: 'text', text: `${FILES} files indexed` }] };
}

function makeServer() {
  const server = new McpServer({ name: 'demo', version: '1.0.0' });
  const inputSchema = z.object({ call: z.string().default('stream') });
  server.registerTool('index_files', { description: 'Index some files.', inputSchema }, indexFiles);
  return server;
}

// The timeline says it.
setLog(() => {});
configure({
  store: await openStore(options.store, { ownerLostMs: Number(options['owner-lost-ms']) }),
  retryMs: 900,
  taskAfterMs: 300,
});
http.createServer(createResumableMcpHandler(makeServer).node).listen(Number(options.port), '127.0.0.1');
