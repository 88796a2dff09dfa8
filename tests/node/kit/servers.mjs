// Servers for both SDK lines, with one tool: `script` runs the steps that a test wrote down.
import { randomUUID } from 'node:crypto';
import http from 'node:http';

import { McpServer as McpServerV1 } from '@modelcontextprotocol/sdk/server/mcp.js';
import { McpServer as McpServerV2 } from '@modelcontextprotocol/server';
import * as z from 'zod';

import * as v2 from 'tailrope/mcp';
import * as v1 from 'tailrope/mcp-v1';

export const LINES = ['v1', 'v2'];

const gates = new Map();
const marks = new Map();

function slot(map, name) {
  if (!map.has(name)) {
    let open;
    const promise = new Promise((resolve) => (open = resolve));
    map.set(name, { promise, open });
  }
  return map.get(name);
}

let gateCount = 0;
export const newGate = () => `gate-${++gateCount}`;
export const open = (name) => slot(gates, name).open();
/** Resolves when a script came past `mark NAME`. */
export const marked = (name) => slot(marks, name).promise;
/** The marks that scripts came past. */
export const passed = new Set();

function mark(name) {
  passed.add(name);
  slot(marks, name).open();
}

/**
 * emit N [BYTES], gate NAME, mark NAME, close [retry=] [hold=], close_standalone, standalone TEXT,
 * elicit TEXT, sleep MS, return TEXT, wait_cancel.
 */
async function script(steps, ctx) {
  let sent = 0;
  let result = 'done';
  for (const step of steps) {
    const [word, ...rest] = step.split(' ');
    if (word === 'emit') {
      const message = rest[1] === undefined ? undefined : 'x'.repeat(Number(rest[1]));
      for (let left = Number(rest[0]); left > 0; left--) {
        await ctx.progress(++sent, message);
      }
    } else if (word === 'until') {
      let over = false;
      slot(gates, rest[0]).promise.then(() => (over = true));
      while (!over) {
        await ctx.progress(++sent);
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
      result = String(sent);
    } else if (word === 'gate') {
      mark(`at ${rest[0]}`);
      await slot(gates, rest[0]).promise;
    } else if (word === 'mark') {
      mark(rest.join(' '));
    } else if (word === 'close') {
      const options = Object.fromEntries(rest.map((part) => part.split('=')));
      ctx.close({
        retryMs: options.retry === undefined ? undefined : Number(options.retry),
        holdMs: options.hold === undefined ? undefined : Number(options.hold),
      });
    } else if (word === 'close_standalone') {
      ctx.closeStandalone();
    } else if (word === 'standalone') {
      await ctx.standalone(rest.join(' '));
    } else if (word === 'elicit') {
      const answer = await ctx.elicit({ message: rest.join(' '), requestedSchema });
      result = answer.content.name;
    } else if (word === 'sleep') {
      await new Promise((resolve) => setTimeout(resolve, Number(rest[0])));
    } else if (word === 'wait_cancel') {
      mark('waiting');
      await new Promise((resolve) => ctx.signal.addEventListener('abort', resolve));
    } else if (word === 'return') {
      result = rest.join(' ');
    } else {
      throw new Error(`no step ${word}`);
    }
  }
  return { content: [{ type: 'text', text: result }] };
}

const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
const info = { name: 'test', version: '1' };
const capabilities = { capabilities: { logging: {} } };

function progressParams(meta, progress, message) {
  return { progressToken: meta?.progressToken ?? 0, progress, ...(message !== undefined && { message }) };
}

const builders = {
  v1() {
    const server = new McpServerV1(info, capabilities);
    server.registerTool('script', { inputSchema: { steps: z.array(z.string()) } }, ({ steps }, extra) =>
      script(steps, {
        progress: (count, message) =>
          extra.sendNotification({
            method: 'notifications/progress',
            params: progressParams(extra._meta, count, message),
          }),
        close: (options) => extra.closeSSEStream?.(options),
        closeStandalone: () => extra.closeStandaloneSSEStream?.(),
        standalone: (data) => server.server.sendLoggingMessage({ level: 'info', data }),
        elicit: (params) => server.server.elicitInput(params, { relatedRequestId: extra.requestId }),
        signal: extra.signal,
      }),
    );
    server.registerTool('header', { inputSchema: { name: z.string() } }, ({ name }, extra) => ({
      content: [{ type: 'text', text: `${extra.requestInfo.headers[name]} ${extra.requestInfo.url.pathname}` }],
    }));
    return server;
  },
  v2() {
    const server = new McpServerV2(info, capabilities);
    server.registerTool('script', { inputSchema: z.object({ steps: z.array(z.string()) }) }, ({ steps }, ctx) =>
      script(steps, {
        progress: (count, message) =>
          ctx.mcpReq.notify({
            method: 'notifications/progress',
            params: progressParams(ctx.mcpReq._meta, count, message),
          }),
        close: (options) => ctx.http.closeSSE?.(options),
        closeStandalone: () => ctx.http.closeStandaloneSSE?.(),
        standalone: (data) =>
          server.server.notification({ method: 'notifications/message', params: { level: 'info', data } }),
        // `elicitInput` of this line asks on the standalone stream.
        elicit: (params) => ctx.mcpReq.send({ method: 'elicitation/create', params: { mode: 'form', ...params } }),
        signal: ctx.mcpReq.signal,
      }),
    );
    server.registerTool('header', { inputSchema: z.object({ name: z.string() }) }, ({ name }, ctx) => ({
      content: [{ type: 'text', text: `${ctx.http.req.headers.get(name)} ${new URL(ctx.http.req.url).pathname}` }],
    }));
    return server;
  },
};

/** Connects a server with the tools to a transport. */
export async function connectServer(line, transport) {
  const server = builders[line]();
  await server.connect(transport);
  return server;
}

export const packages = { v1, v2 };
export const classes = { v1: v1.StreamableHTTPServerTransport, v2: v2.NodeStreamableHTTPServerTransport };

/** Starts a server of a line; `options` are the transport's. Users come from the header `x-user`. */
export async function serve(line, options = {}) {
  const transports = new Map();
  const requests = { POST: 0, GET: 0, DELETE: 0 };
  const errors = [];

  async function handle(req, res) {
    requests[req.method] += 1;
    const user = req.headers['x-user'];
    if (user !== undefined) {
      req.auth = { token: user, clientId: user, scopes: [] };
    }
    let transport = transports.get(req.headers['mcp-session-id']);
    if (transport === undefined && req.headers['mcp-session-id'] !== undefined) {
      res.writeHead(404).end();
      return;
    }
    if (transport === undefined) {
      transport = new classes[line]({
        sessionIdGenerator: () => randomUUID(),
        retryInterval: 20,
        onsessioninitialized: (id) => transports.set(id, transport),
        onsessionclosed: (id) => transports.delete(id),
        ...options,
      });
      transport.onerror = (error) => errors.push(error);
      await connectServer(line, transport);
    }
    await transport.handleRequest(req, res);
  }

  const server = http.createServer((req, res) => {
    handle(req, res).catch((error) => {
      errors.push(error);
      res.destroy();
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: server.address().port,
    transports,
    requests,
    errors,
    /** Takes no further connections. */
    stop: () => server.close(),
    async close() {
      for (const transport of transports.values()) {
        await transport.close();
      }
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
