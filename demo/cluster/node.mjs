// A Node node: an ordinary node:http server of the TypeScript SDK 2.x with the same two tools as node.py. The lines that
// matter are at the end.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { McpServer } from '@modelcontextprotocol/server';
import { configure, createResumableMcpHandler, drain, live, openStore } from 'tailrope/mcp';
import * as z from 'zod';

const CLOSE_EVERY_MS = 2_500;

const { values: options } = parseArgs({
  options: {
    port: { type: 'string' },
    store: { type: 'string' },
    'owner-lost-ms': { type: 'string' },
    'drain-within-ms': { type: 'string' },
  },
});

/** One line per fact for the timeline, stamped with the machine's monotonic clock. */
function report(what, fields = {}) {
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()) / 1e9, what, ...fields }));
}

const text = (words) => ({ content: [{ type: 'text', text: words }] });

/** Index some files, reporting each one, and drop the connection now and then. */
async function indexFiles({ call, files, run_s }, ctx) {
  report('start', { call, run_s });
  const began = performance.now();
  let closed = began;
  for (let number = 1; number <= files; number++) {
    // On a busy machine the next file may already be due.
    await sleep(Math.max(0, began + (run_s * 1_000 * number) / files - performance.now()));
    await ctx.mcpReq.notify({
      method: 'notifications/progress',
      params: { progressToken: ctx.mcpReq._meta.progressToken, progress: number, total: files },
    });
    report('emit', { call, number });
    if (performance.now() - closed >= CLOSE_EVERY_MS) {
      closed = performance.now();
      report('close', { call });
      ctx.http.closeSSE?.();
    }
  }
  report('finish', { call });
  return text(`${files} files indexed`);
}

/** Ask the user which folder to index. */
async function askFolder({ call }, ctx) {
  report('start', { call, run_s: 0 });
  report('ask', { call });
  const requestedSchema = { type: 'object', properties: { folder: { type: 'string' } }, required: ['folder'] };
  const params = { mode: 'form', message: 'Which folder?', requestedSchema };
  const { content } = await ctx.mcpReq.send({ method: 'elicitation/create', params });
  report('finish', { call });
  return text(`the user chose ${content.folder}`);
}

function buildServer() {
  const server = new McpServer({ name: 'cluster', version: '1.0.0' });
  const call = z.string();
  const files = { call, files: z.number().int(), run_s: z.number() };
  server.registerTool('index_files', { description: 'Index some files.', inputSchema: z.object(files) }, indexFiles);
  server.registerTool('ask_folder', { description: 'Ask the user.', inputSchema: z.object({ call }) }, askFolder);
  return server;
}

configure({
  store: await openStore(options.store, { ownerLostMs: Number(options['owner-lost-ms']) }),
  retryMs: 1_000,
});
const handler = createResumableMcpHandler(buildServer, { onAdopted: () => report('adopt') });
process.once('SIGTERM', async () => {
  await drain({ withinMs: Number(options['drain-within-ms']) });
  process.exit(0);
});
// Only this computer can ask for the page; elsewhere it belongs behind your own authentication.
const answer = (request, response) =>
  request.url.startsWith('/live') ? live(request, response) : handler.node(request, response);
http.createServer(answer).listen(Number(options.port), '127.0.0.1');
