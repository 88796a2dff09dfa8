// The demo's Node server: an ordinary node:http server of the TypeScript SDK 2.x with one slow tool. The line that
// matters is the first one of the second part.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { McpServer } from '@modelcontextprotocol/server';

const FILES = 1_000;
const RUN_MS = 6_500;
const CLOSE_AT_MS = [500, 1_700, 2_900, 3_800, 5_400];
// One file is large. The connection is closed twice meanwhile: the client comes back once and is sent nothing.
const LARGE_FILE = 451;
const LARGE_FILE_MS = 2_200;
const RETRY_MS = 600;

const { values: options } = parseArgs({
  options: { port: { type: 'string' }, transport: { type: 'string', default: 'tailrope' } },
});

/** One line per fact for the timeline, stamped with the machine's monotonic clock. */
function report(what, fields = {}) {
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()) / 1e9, what, ...fields }));
}

/** Index a thousand files, reporting each one, and drop the connection now and then. */
async function indexFiles(ctx) {
  report('start', { total: FILES, run_s: RUN_MS / 1_000 });
  const began = performance.now();
  const closes = [...CLOSE_AT_MS];
  const until = async (dueMs) => {
    while (closes.length > 0 && closes[0] <= dueMs) {
      await sleep(began + closes.shift() - performance.now());
      report('close');
      ctx.http.closeSSE?.();
    }
    // On a busy machine the next file may already be due.
    await sleep(Math.max(0, began + dueMs - performance.now()));
  };
  for (let number = 1; number <= FILES; number++) {
    if (number === LARGE_FILE) {
      report('work', { number, run_s: LARGE_FILE_MS / 1_000 });
    }
    await until((RUN_MS - LARGE_FILE_MS) * (number / FILES) + (number < LARGE_FILE ? 0 : LARGE_FILE_MS));
    await ctx.mcpReq.notify({
      method: 'notifications/progress',
      params: { progressToken: ctx.mcpReq._meta.progressToken, progress: number, total: FILES },
    });
    report('emit', { number });
  }
  report('finish', { result: `${FILES} files indexed` });
  return { content: [{ type: 'text', text: `${FILES} files indexed` }] };
}

function makeServer() {
  const server = new McpServer({ name: 'demo', version: '1.0.0' });
  server.registerTool('index_files', { description: 'Index a thousand files.' }, indexFiles);
  return server;
}

/** For `--transport stock` only: the in-memory store that the stock transport needs to resume anything at all. */
class ListStore {
  #events = [];

  async storeEvent(streamId, message) {
    return String(this.#events.push({ streamId, message }));
  }

  async getStreamIdForEventId(eventId) {
    return this.#events[Number(eventId) - 1]?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const streamId = await this.getStreamIdForEventId(lastEventId);
    for (const [index, event] of this.#events.entries()) {
      if (index >= Number(lastEventId) && event.streamId === streamId && event.message.jsonrpc !== undefined) {
        await send(String(index + 1), event.message);
      }
    }
    return streamId;
  }
}

const isStock = options.transport === 'stock';
const { NodeStreamableHTTPServerTransport } = await import(isStock ? '@modelcontextprotocol/node' : 'tailrope/mcp');
const eventStore = isStock ? new ListStore() : undefined;
const transports = new Map();

async function serve(req, res) {
  const sessionId = req.headers['mcp-session-id'];
  let transport = transports.get(sessionId);
  if (transport === undefined && sessionId !== undefined) {
    res.writeHead(404).end();
    return;
  }
  if (transport === undefined) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => transports.set(id, transport),
      retryInterval: RETRY_MS,
      eventStore,
    });
    await makeServer().connect(transport);
  }
  await transport.handleRequest(req, res);
}

http.createServer(serve).listen(Number(options.port), '127.0.0.1');
