// The tools of the bench, for both SDK lines.
import { setTimeout as sleep } from 'node:timers/promises';

import * as z from 'zod';

const INFO = { name: 'bench', version: '0' };

/** How many `emit` calls this process has run to their end. */
let emits = 0;

const text = (value) => ({ content: [{ type: 'text', text: value }] });

async function emit({ n, bytes }, progress) {
  const message = 'x'.repeat(bytes);
  for (let i = 1; i <= n; i++) {
    await progress({ progress: i, total: n, message });
  }
  emits += 1;
  return text(String(n));
}

async function poll({ before, after }, progress, close) {
  const total = before + after;
  for (let i = 1; i <= before; i++) {
    await progress({ progress: i, total });
  }
  close();
  for (let i = before + 1; i <= total; i++) {
    await progress({ progress: i, total });
  }
  return text('done');
}

/** For connections that are open while nothing happens. */
async function wait({ seconds }, progress) {
  await progress({ progress: 1, total: 1 });
  await sleep(seconds * 1_000);
  return text('done');
}

const EMIT = { n: z.number(), bytes: z.number() };
const POLL = { before: z.number(), after: z.number() };
const WAIT = { seconds: z.number() };

/** Each gives a function that makes a server: one is made for each session. */
export const FLAVORS = {
  async v2() {
    const { McpServer } = await import('@modelcontextprotocol/server');
    // Made once, as a user would: the SDK turns schemas into JSON Schema for each server.
    const shapes = [{ text: z.string() }, EMIT, POLL, WAIT];
    const [echoInput, emitInput, pollInput, waitInput] = shapes.map((shape) => z.object(shape));
    const progress = ({ mcpReq }) => {
      const { progressToken } = mcpReq._meta;
      return (params) => mcpReq.notify({ method: 'notifications/progress', params: { progressToken, ...params } });
    };
    return () => {
      const server = new McpServer(INFO);
      server.registerTool('echo', { inputSchema: echoInput }, (args) => text(args.text));
      server.registerTool('emit', { inputSchema: emitInput }, (args, ctx) => emit(args, progress(ctx)));
      server.registerTool('completed', {}, () => text(String(emits)));
      server.registerTool('poll', { inputSchema: pollInput }, (args, ctx) =>
        poll(args, progress(ctx), () => ctx.http.closeSSE()),
      );
      server.registerTool('wait', { inputSchema: waitInput }, (args, ctx) => wait(args, progress(ctx)));
      return server;
    };
  },

  async v1() {
    const { McpServer } = await import('@modelcontextprotocol/sdk/server/mcp.js');
    const progress = ({ _meta: { progressToken }, sendNotification }) => {
      return (params) => sendNotification({ method: 'notifications/progress', params: { progressToken, ...params } });
    };
    return () => {
      const server = new McpServer(INFO);
      server.registerTool('echo', { inputSchema: { text: z.string() } }, (args) => text(args.text));
      server.registerTool('emit', { inputSchema: EMIT }, (args, extra) => emit(args, progress(extra)));
      server.registerTool('completed', {}, () => text(String(emits)));
      server.registerTool('poll', { inputSchema: POLL }, (args, extra) =>
        poll(args, progress(extra), () => extra.closeSSEStream()),
      );
      server.registerTool('wait', { inputSchema: WAIT }, (args, extra) => wait(args, progress(extra)));
      return server;
    };
  },
};
