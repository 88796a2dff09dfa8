// A resumable server in a Fastify 5 application. Run it with `node fastify.mjs`.
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import Fastify from 'fastify';
import { createSessionRouter } from 'tailrope/mcp';
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

const app = Fastify({ bodyLimit: 4 << 20 });

app.all('/mcp', async (request, reply) => {
  // The router writes the answer itself; Fastify has parsed the body.
  reply.hijack();
  await router.node(request.raw, reply.raw, request.body);
});

await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT ?? 3000) });
console.log(`http://127.0.0.1:${app.server.address().port}/mcp`);
