// For users of the createMcpHandler of @modelcontextprotocol/server 2.x: with the same call, clients get resumable
// sessions; those that would speak 2026-07-28, where nothing can be resumed, fall back by themselves. Run it with
// `node resumable-handler.mjs`.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
// The one line: it used to be createMcpHandler of '@modelcontextprotocol/server'.
import { createResumableMcpHandler } from 'tailrope/mcp';
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

// Called for each session. With `preferResumable: false` it is called for each request of 2026-07-28, too.
const handler = createResumableMcpHandler(() => buildServer(), { onerror: console.error });

// On runtimes with web-standard requests it is handler.fetch(request).
const server = http.createServer((req, res) => {
  if (req.url === '/mcp') {
    handler.node(req, res).catch((error) => {
      console.error(error);
      res.destroy();
    });
  } else {
    res.writeHead(404).end();
  }
});
server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
