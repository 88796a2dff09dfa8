// Starts one test server: node app.mjs --flavor node-v2 --transport tailrope [--port 0] [--options JSON]
//
// A flavour is `node` (the classes for node:http) or `web` (the web-standard ones, behind a server that speaks fetch) and
// an SDK line. Prints `READY PORT` when it listens. The options are those of the Python servers (tests/servers/python):
// engine (options of the event store's engine, in the spelling of Python), address (of the event store), store (none, lab,
// example), cap (events of a stream that the lab store keeps), retry_ms, idle_s, json_response, stateless_http, auth (bearer
// tokens), max_request_body_size, log (least level of what the engine logs to standard error).
import { parseArgs } from 'node:util';

import { configure, drain, setLog } from 'tailrope/mcp';

import { camelCase, controlled } from './ctl.mjs';
import { LabStore } from './stores.mjs';
import { listen, makeServer } from './transports.mjs';

/** What the options are in the words of `makeServer`. */
async function translated(options, stock) {
  const { engine = {}, address, store, cap, retry_ms: retryMs = 20, idle_s: idleS, log, ...rest } = options;
  const { prefer_resumable: _, keep_alive_ms: keepAliveMs, ...limits } = engine;
  const own = Object.fromEntries(Object.entries(limits).map(([name, value]) => [camelCase(name), value]));
  const { json_response: enableJsonResponse, stateless_http: stateless, max_request_body_size: size, auth, ...more } = rest;
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
  } else {
    made.address = address;
  }
  if (idleS !== undefined) {
    own.sessionIdleMs = idleS * 1000;
  }
  if (!stock) {
    made.keepAliveMs = keepAliveMs;
    // A store of the server's own has its own engine; one that a user wrote takes the engine of the process.
    if (made.eventStore === undefined) {
      made.engine = own;
    } else {
      configure(own);
    }
  }
  return { ...made, enableJsonResponse, maxRequestBodySize: size };
}

const { values } = parseArgs({
  options: {
    flavor: { type: 'string' },
    transport: { type: 'string', default: 'tailrope' },
    port: { type: 'string', default: '0' },
    options: { type: 'string', default: '{}' },
  },
});
const [kind, line] = values.flavor.split('-');
const stock = values.transport === 'stock';
const made = makeServer(line, { web: kind === 'web', ...(await translated(JSON.parse(values.options), stock)) });
const { port, stop } = await listen(controlled(made), Number(values.port));

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, async () => {
    stop();
    await (stock ? made.closeTransports() : drain());
    process.exit(0);
  });
}

console.log(`READY ${port}`);
