// One test server in a process of its own: node run.mjs LINE [OPTIONS JSON]. Prints `READY PORT`, then answers
// lines on stdin: `state` with the server's state, `held` with what it holds, `open GATE`, `drain MS` with whether
// everything was closed; `close` closes the listener and leaves the rest to the process. SIGTERM and SIGINT end it
// as a host would.
import { readFileSync, readdirSync } from 'node:fs';
import { createInterface } from 'node:readline';

import { drain, setLog, stats } from 'tailrope/mcp';

import { forgetMarks, open, passed } from './control.mjs';
import { logged, serve } from './servers.mjs';
import { isStock } from './test.mjs';

const [line, options = '{}'] = process.argv.slice(2);
const server = await serve(line, JSON.parse(options));
const PAGE_BYTES = 4096;
setLog((level, line) => console.error(`${level} ${line}`), 'warn');

function state() {
  gc();
  const rss = Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * PAGE_BYTES;
  const errors = server.errors.map(String);
  const descriptors = readdirSync('/proc/self/fd').length;
  return { rss, descriptors, stats: stats(), passed: [...passed], errors, sessions: server.transports.size };
}

/** What the process holds once everything has wound down: the tests' own books are thrown away first. */
function held() {
  forgetMarks();
  server.forget();
  logged.length = 0;
  gc();
  const { heapUsed, external } = process.memoryUsage();
  return { ...state(), heap: heapUsed + external };
}

const orders = {
  state,
  held,
  open: (gate) => open(gate) ?? null,
  drain: (ms) => drain({ retryMs: Number(ms) }),
  close() {
    server.stop();
    process.stdin.unref();
    return null;
  },
};

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, async () => {
    server.stop();
    // The SDKs' own servers close their transports.
    await (isStock ? Promise.all([...server.transports.values()].map((transport) => transport.close())) : drain());
    process.exit(0);
  });
}

console.log(`READY ${server.port}`);
createInterface(process.stdin)
  .on('line', async (text) => {
    const [word, argument] = text.split(' ');
    console.log(JSON.stringify(await orders[word](argument)));
  })
  .on('close', () => process.exit());
