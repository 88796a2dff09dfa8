// Starts one test server: node app.mjs --flavor node-v2 --transport tailrope [--port 0] [--options JSON]
//
// A flavour is `node` (the classes for node:http), `web` (the web-standard ones, behind a server that speaks fetch) or
// `handler` (one handler that also serves 2026-07-28), an SDK line, and `front` where `serve` is to serve it. Prints
// `READY PORT` when it listens. The options are those of the Python servers (tests/servers/python):
// engine (options of the event store's engine, in the spelling of Python; its `transport` is `stock` for the SDK's own in
// front of our store), address (of the event store), store (none, lab, example, event-store, absent), cap (events of a stream
// that the lab store keeps), retry_ms, idle_s, json_response, stateless_http, auth (bearer tokens), guard (against foreign
// hosts and origins, which the Python SDKs have by themselves), max_request_body_size, log (least level of what the engine
// logs to standard error), own_auth (what the header `x-test-user` says in JSON is what the host's authentication left, and
// the option `principal` reads `x-test-name`), reuse_port (others may listen at the port of a front).
import cluster from 'node:cluster';
import { parseArgs } from 'node:util';

import { configure, drain, openStore, setLog } from 'tailrope/mcp';

import { camelCase, controlled } from './ctl.mjs';
import { LabStore } from './stores.mjs';
import { buildServer } from './tools.mjs';
import { listen, makeServer, packages, userOf } from './transports.mjs';

const OF_STORE = /^(max(Age|Bytes|Event).*|retentionMs|ownerLostMs|durability|encryptionKeys)$/;

/** The store at an address, with those of the options that are a store's, and the options that are not. */
async function opened(address = 'memory:', options) {
  const entries = Object.entries(options);
  const ofStore = entries.filter(([name]) => OF_STORE.test(name));
  const others = entries.filter(([name]) => !OF_STORE.test(name));
  return [await openStore(address, Object.fromEntries(ofStore)), Object.fromEntries(others)];
}

/** What the options are in the words of `makeServer`. */
async function translated(options, stock) {
  // `stock` is chosen with the transport.
  const {
    engine = {},
    address,
    store,
    cap,
    retry_ms: retryMs = 20,
    idle_s: idleS,
    log,
    stock: _stock,
    ...rest
  } = options;
  const { transport, ...limits } = engine;
  const spelled = (said) => Object.fromEntries(Object.entries(said).map(([name, value]) => [camelCase(name), value]));
  const own = spelled(limits);
  if (own.pace !== undefined) {
    own.pace = Object.fromEntries(Object.entries(own.pace).map(([tool, said]) => [tool, spelled(said)]));
  }
  const {
    json_response: enableJsonResponse,
    stateless_http: stateless,
    max_request_body_size: size,
    auth,
    guard,
    own_auth: ownAuth,
    // It answers at every path anyway.
    any_path: _,
    reuse_port: reusePort,
    ...more
  } = rest;
  if (Object.keys(more).length > 0) {
    throw new TypeError(`unknown options: ${Object.keys(more)}`);
  }
  setLog((level, line) => console.error(`${level} ${line}`), (log ?? 'warn').toLowerCase());
  const made = { stock, stateless, auth, retryInterval: retryMs };
  if (store === 'lab' || stock) {
    made.eventStore = new LabStore({ cap });
  } else if (store === 'example') {
    const { JsonLinesEventStore } = await import('../../../examples/node/own-event-store.mjs');
    made.eventStore = new JsonLinesEventStore(address, cap);
  }
  if (guard) {
    Object.assign(made, { enableDnsRebindingProtection: true, allowedHosts, allowedOrigins: ['http://127.0.0.1'] });
  }
  if (ownAuth) {
    made.principal = (request) => new Headers(request.headers).get('x-test-name');
  }
  if (idleS !== undefined) {
    own.sessionIdleMs = idleS * 1000;
  }
  if (!stock) {
    // A store of the server's own has its own engine; one that a user wrote takes the engine of the process.
    if (transport === 'stock') {
      made.eventStore = new packages[line].EventStore(...(await opened(address, own)));
      made.stock = true;
    } else if (made.eventStore === undefined && store !== 'absent') {
      [made.address, made.engine] = await opened(address, own);
    } else {
      configure(own);
    }
  }
  return { ...made, enableJsonResponse, maxRequestBodySize: size, reusePort };
}

/** What nobody has put on a port yet, on one. */
async function listened(port) {
  const host = await listen(controlled(made), port);
  return {
    port: host.port,
    async end() {
      host.stop();
      await (stock ? made.closeTransports() : drain());
    },
  };
}

/** The same behind the front, which has `/mcp`, unless what a test calls authentication is in front of that. */
async function fronted(port) {
  const { auth, address: _, engine: __, stateless: ___, stock: ____, principal, ...others } = options;
  const serving = await packages[line].serve({
    ...others,
    // Without lists a server for this machine is guarded as well.
    enableDnsRebindingProtection: others.allowedOrigins !== undefined,
    allowedHosts: undefined,
    server: () => buildServer(line),
    eventStore: made.store,
    onerror: (error) => made.errors.push(error),
    port,
    reusePort,
    path: principal === undefined ? '/mcp' : '/elsewhere',
    app: controlled(made),
    ...(auth && { authenticate: ({ headers }) => userOf((name) => headers[name]) }),
  });
  return { port: serving.port, end: () => serving.drain() };
}

const { values } = parseArgs({
  options: {
    flavor: { type: 'string' },
    transport: { type: 'string', default: 'tailrope' },
    port: { type: 'string', default: '0' },
    options: { type: 'string', default: '{}' },
  },
});
const [kind, line, door] = values.flavor.split('-');
const stock = values.transport === 'stock';
/** Filled once it is known where this server is. */
const allowedHosts = [];
const { reusePort, ...options } = await translated(JSON.parse(values.options), stock);
const bothEras = kind === 'handler';
const routed = !bothEras && !options.stock && !options.stateless;
const made = makeServer(line, { web: kind === 'web', routed, bothEras, ...options });
const { port, end } = await (door === 'front' && routed ? fronted : listened)(Number(values.port));
allowedHosts.push(`127.0.0.1:${port}`);

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, async () => {
    await end();
    process.exit(0);
  });
}

if (cluster.isWorker) {
  // Nobody chooses the worker that gets a request, so tests ask each one at a port of its own.
  const own = await listen(controlled(made), 0, true);
  console.log(`WORKER ${own.port} ${process.pid}`);
} else {
  console.log(`READY ${port}`);
}
