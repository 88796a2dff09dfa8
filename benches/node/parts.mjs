// The parts of a call that no transport can save, and what our engine takes, each measured alone.
// `benches/run` subtracts them.
//
// `parts.mjs bare --port N`: node:http with a function that answers the bench client as fast as
// JavaScript can, without an SDK. `parts.mjs alone --flavor F`: the SDK with its tools behind a
// transport that only hands messages over; the schema of a message; the engine without HTTP.
import http from 'node:http';
import { parseArgs } from 'node:util';

import { FLAVORS } from './tools.mjs';

const REVISION = '2025-11-25';

/** Answers `initialize` and `echo` of the bench client, each with a priming event and the response. */
function bare(port) {
  let events = 0;
  const server = http.createServer((req, res) => {
    let body = '';
    req.setEncoding('utf8');
    req.on('data', (chunk) => (body += chunk));
    req.on('end', () => {
      const { id, method, params } = JSON.parse(body);
      if (id === undefined) {
        res.writeHead(202, { 'content-length': 0 }).end();
        return;
      }
      const result =
        method === 'initialize'
          ? { protocolVersion: params.protocolVersion, capabilities: {} }
          : { content: [{ type: 'text', text: params.arguments.text }] };
      const data = JSON.stringify({ jsonrpc: '2.0', id, result });
      events += 2;
      const text = `id: ${events}\ndata: \n\nid: ${events + 1}\ndata: ${data}\n\n`;
      const headers = { 'content-type': 'text/event-stream', 'mcp-session-id': 'bare' };
      res.writeHead(200, { ...headers, 'content-length': Buffer.byteLength(text) }).end(text);
    });
  });
  server.listen(port, '127.0.0.1', () => console.log('READY'));
}

const call = (id, name, args) => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args, _meta: { progressToken: id } },
});

/** Drops what it is given, after turning it into JSON if asked to. */
class NullTransport {
  encode = false;
  sessionId = 'alone';
  #answered;
  #failed;

  async start() {}

  async close() {}

  async send(message) {
    if (this.encode) {
      JSON.stringify(message);
    }
    if (message.method !== undefined) {
      return;
    }
    if (message.error !== undefined || message.result.isError) {
      this.#failed(new Error(JSON.stringify(message)));
    }
    this.#answered();
  }

  post(message) {
    return new Promise((resolve, reject) => {
      this.#answered = resolve;
      this.#failed = reject;
      this.onmessage(message, {});
      if (message.id === undefined) {
        resolve();
      }
    });
  }
}

/** Microseconds for each of `times`. */
async function microseconds(times, work) {
  const start = performance.now();
  await work(times);
  return ((performance.now() - start) * 1e3) / times;
}

/** The best of many short ones: these are floors, and a disturbed run only raises them. */
async function best(times, work) {
  let least = Infinity;
  for (let round = 0; round < 40; round++) {
    least = Math.min(least, await microseconds(times, work));
  }
  return least;
}

async function sdkAlone(flavor) {
  const transport = new NullTransport();
  const makeServer = await FLAVORS[flavor]();
  await makeServer().connect(transport);
  const clientInfo = { name: 'parts', version: '0' };
  const params = { protocolVersion: REVISION, capabilities: {}, clientInfo };
  await transport.post({ jsonrpc: '2.0', id: 1, method: 'initialize', params });
  await transport.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
  const echo = async (times) => {
    for (let i = 0; i < times; i++) {
      await transport.post(call(i, 'echo', { text: 'hello' }));
    }
  };
  const emit = (times) => transport.post(call(1, 'emit', { n: times, bytes: 100 }));
  const costs = { echo_us: await best(500, echo), emit_us: await best(5_000, emit) };
  transport.encode = true;
  return { ...costs, emit_json_us: await best(5_000, emit) };
}

/** The check of a message against the SDK's schema, before the SDK gets it: a transport's duty. */
async function schema(flavor) {
  const message = call(1, 'echo', { text: 'hello' });
  let parse;
  if (flavor === 'v1') {
    const { JSONRPCMessageSchema } = await import('@modelcontextprotocol/sdk/types.js');
    parse = (value) => JSONRPCMessageSchema.parse(value);
  } else {
    ({ parseJSONRPCMessage: parse } = await import('@modelcontextprotocol/server'));
  }
  const each = (times) => {
    for (let i = 0; i < times; i++) {
      parse(message);
    }
  };
  return { schema_us: await best(5_000, each) };
}

/** The calls into the engine that an echo and an event make. */
async function engineAlone() {
  const { Engine, Store } = await import('../../bindings-node/lib/native.mjs');
  const { headOf } = await import('../../bindings-node/lib/server/head.mjs');
  const store = new Store('memory:', { maxEventsPerStream: 50_000 });
  const engine = new Engine(store, { keepAliveMs: 0 }, ...Array(3).fill(() => {}));
  const session = engine.openSession('alone', '', undefined, 2, [REVISION], 10);
  const head = (...inSession) =>
    headOf('POST', 'application/json, text/event-stream', 'application/json', ...inSession, undefined);
  const answer = (connection, id) => {
    session.respond(id, `{"jsonrpc":"2.0","id":${id},"result":{"content":[{"type":"text","text":"hello"}]}}`);
    while (connection.poll(1 << 18)[1] !== -2);
    connection.lost();
  };
  const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"${REVISION}"}}`;
  answer(session.open(engine.admit(head(undefined, undefined), undefined, initialize, false, 2, [REVISION]), false), 0);
  const inSession = head(REVISION, 'alone');
  const opensCall = () => true;
  const params = JSON.stringify(call(1, 'echo', { text: 'hello' }).params);
  let id = 0;
  const open = () => {
    const text = `{"jsonrpc":"2.0","id":${++id},"method":"tools/call","params":${params}}`;
    return session.enter(inSession, '', undefined, text, false, opensCall);
  };
  const echo = (times) => {
    for (let i = 0; i < times; i++) {
      answer(open(), id);
    }
  };
  const event = JSON.stringify({ progressToken: 1, progress: 1, total: 1_000, message: 'x'.repeat(100) });
  const emit = (times) => {
    const connection = open();
    for (let i = 1; i <= times; i++) {
      session.notify(id, `{"jsonrpc":"2.0","method":"notifications/progress","params":${event}}`, 0);
      if (i % 128 === 0) {
        connection.poll(1 << 18);
      }
    }
    answer(connection, id);
  };
  const costs = { engine_echo_us: await best(500, echo), engine_emit_us: await best(5_000, emit) };
  session.end();
  return costs;
}

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { port: { type: 'string', default: '0' }, flavor: { type: 'string', default: 'v2' } },
});
if (positionals[0] === 'bare') {
  bare(Number(values.port));
} else {
  const costs = { ...(await sdkAlone(values.flavor)), ...(await schema(values.flavor)), ...(await engineAlone()) };
  console.log(JSON.stringify(costs));
}
