// A resumable server in an Express 5 application whose middleware parses bodies. Run it with `node express.mjs`.
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import express from 'express';
import { createSessionRouter, stats } from 'tailrope/mcp';
import * as z from 'zod';

function buildServer() {
  const server = new McpServer({ name: 'reports', version: '1.0.0' });
  const description = 'Build a report page by page, without keeping a connection open all the while.';
  const inputSchema = z.object({ pages: z.number().int() });
  server.registerTool('build_report', { description, inputSchema }, async ({ pages }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let page = 1; page <= pages; page++) {
      await sleep(50);
      if (progressToken !== undefined) {
        const params = { progressToken, progress: page, total: pages, message: `page ${page}` };
        await ctx.mcpReq.notify({ method: 'notifications/progress', params });
      }
      if (page === Math.floor(pages / 2)) {
        // The client comes back by itself, here after half a second, and is sent what it missed.
        ctx.http.closeSSE?.({ retryMs: 500 });
      }
    }
    return { content: [{ type: 'text', text: `${pages} pages` }] };
  });
  return server;
}

// Makes a server for each session, and finds it again.
const router = createSessionRouter(buildServer);

const app = express();
app.use(express.json({ limit: '4mb' }));

app.get('/health', (_req, res) => {
  res.json({ sessions: stats().sessions });
});

app.all('/mcp', router.node);

const server = app.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', (error) => {
  if (error) {
    throw error;
  }
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
