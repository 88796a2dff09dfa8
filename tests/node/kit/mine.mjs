// A server as a user has it, for the tests of the test kit: `PORT` is where it listens, `STORE` its event store, `stock`
// for none: the SDK's transport then.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { McpServer } from '@modelcontextprotocol/server';
import { createSessionRouter, EventStore } from 'tailrope/mcp';
import * as z from 'zod';

function build() {
  const server = new McpServer({ name: 'mine', version: '1' });
  const inputSchema = z.object({ to: z.number(), close_at: z.number().default(0), pause_ms: z.number().default(5) });
  server.registerTool('count', { inputSchema }, async ({ to, close_at: closeAt, pause_ms: pauseMs }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let progress = 1; progress <= to; progress++) {
      await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: to } });
      if (progress === closeAt) {
        ctx.http.closeSSE?.();
      }
      await sleep(pauseMs);
    }
    return { content: [{ type: 'text', text: `counted to ${to}` }] };
  });
  return server;
}

/** A handler of node:http. */
export function make(address = 'memory:') {
  if (address === 'stock') {
    return makeStock();
  }
  const eventStore = new EventStore(address, { ownerLostMs: 6_000 });
  return createSessionRouter(build, { retryInterval: 20, eventStore }).node;
}

function makeStock() {
  const transports = new Map();
  return async (req, res) => {
    const sessionId = req.headers['mcp-session-id'];
    let transport = transports.get(sessionId);
    if (transport === undefined && sessionId === undefined) {
      transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        retryInterval: 20,
        onsessioninitialized: (id) => transports.set(id, transport),
      });
      transport.onclose = () => transports.delete(transport.sessionId);
      await build().connect(transport);
    }
    if (transport !== undefined) {
      await transport.handleRequest(req, res);
    } else {
      res.writeHead(404).end();
    }
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  http.createServer(make(process.env.STORE)).listen(Number(process.env.PORT), '127.0.0.1');
}
