// A server of the TypeScript SDK, as its user writes it: `node server.mjs express`, or `hono`.
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import { configure, createResumableMcpHandler } from 'tailrope/mcp';
import * as z from 'zod';

function buildServer() {
  const server = new McpServer({ name: 'try', version: '1.0.0' });
  server.registerTool('work', { inputSchema: z.object({}) }, async (_arguments, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    const report = async (progress) => {
      if (progressToken !== undefined) {
        await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 4 } });
      }
    };
    await report(1);
    await report(2);
    ctx.http.closeSSE?.({ retryMs: 100 });
    await sleep(300);
    await report(3);
    await report(4);
    return { content: [{ type: 'text', text: 'done' }] };
  });
  return server;
}

configure({ taskAfterMs: 0 });
const handler = createResumableMcpHandler(() => buildServer());
const port = Number(process.env.PORT);

if (process.argv[2] === 'express') {
  const { default: express } = await import('express');
  const app = express();
  app.all('/mcp', (req, res) => handler.node(req, res));
  app.listen(port, '127.0.0.1');
} else {
  const [{ Hono }, { serve }] = await Promise.all([import('hono'), import('@hono/node-server')]);
  const app = new Hono();
  app.all('/mcp', (c) => handler.fetch(c.req.raw));
  serve({ fetch: app.fetch, hostname: '127.0.0.1', port });
}
