// Servers of `serve`. As a program: node serving.mjs LINE STORE OWNER_LOST_MS PORT; its first line is its port, and each further
// one is the id of a session that was opened here. SIGTERM drains it.
import diagnostics from 'node:diagnostics_channel';
import { fileURLToPath } from 'node:url';

import { Front } from '../../../bindings-node/lib/native.mjs';
import { buildServer } from '../../servers/node/tools.mjs';
import { packages } from '../../servers/node/transports.mjs';

/** A server of a line at a port that the system chooses, with the tools of all servers. */
export const served = (line, options) =>
  packages[line].serve({ server: () => buildServer(line), port: 0, retryInterval: 20, ...options });

/** One that ends with its test. */
export async function servedFor(t, line, options) {
  const serving = await served(line, options);
  t.after(() => serving.close());
  return serving;
}

/** What of the requests that come from now on JavaScript has to do with. */
export function countWork(t) {
  const work = { passedOn: 0, takes: 0 };
  const noted = () => {
    work.passedOn += 1;
  };
  diagnostics.subscribe('http.server.request.start', noted);
  const { take } = Front.prototype;
  Front.prototype.take = function () {
    work.takes += 1;
    return take.call(this);
  };
  t.after(() => {
    diagnostics.unsubscribe('http.server.request.start', noted);
    Front.prototype.take = take;
  });
  return work;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [line, address, ownerLostMs, port] = process.argv.slice(2);
  const { EventStore } = packages[line];
  const serving = await served(line, {
    port: Number(port),
    reusePort: true,
    eventStore: new EventStore(address, { ownerLostMs: Number(ownerLostMs) }),
    onsessioninitialized: (id) => console.log(id),
  });
  console.log(serving.port);
  process.once('SIGTERM', () => serving.drain());
}
