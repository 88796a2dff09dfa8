// A resumable server for @modelcontextprotocol/sdk 1.x, on node:http. Run it with `node server-v1.mjs`.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { createSessionRouter } from 'tailrope/mcp-v1';
import * as z from 'zod';

function buildServer() {
  const server = new McpServer({ name: 'reports', version: '1.0.0' });
  const description = 'Build a report page by page, without keeping a connection open all the while.';
  const inputSchema = { pages: z.number().int() };
  server.registerTool('build_report', { description, inputSchema }, async ({ pages }, extra) => {
    const progressToken = extra._meta?.progressToken;
    for (let page = 1; page <= pages; page++) {
      await sleep(50);
      if (progressToken !== undefined) {
        const params = { progressToken, progress: page, total: pages, message: `page ${page}` };
        await extra.sendNotification({ method: 'notifications/progress', params });
      }
      if (page === Math.floor(pages / 2)) {
        // The client comes back by itself, here after half a second, and is sent what it missed.
        extra.closeSSEStream?.({ retryMs: 500 });
      }
    }
    return { content: [{ type: 'text', text: `${pages} pages` }] };
  });
  return server;
}

// Makes a server for each session, and finds it again.
const router = createSessionRouter(buildServer);

const server = http.createServer((req, res) => {
  if (req.url === '/mcp') {
    void router.node(req, res);
  } else {
    res.writeHead(404).end();
  }
});
server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
