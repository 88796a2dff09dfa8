// A server in a cluster, as docs/deploy/several-processes.md says it: node clustered.mjs WORKERS STORE. Each line is a
// port that a worker has.
import cluster from 'node:cluster';
import { once } from 'node:events';
import http from 'node:http';

import { drain, EventStore } from 'tailrope/mcp';

import { makeServer } from '../../servers/node/transports.mjs';

const [workers, address] = process.argv.slice(2);

if (cluster.isPrimary) {
  process.once('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) {
      worker.process.kill('SIGTERM');
    }
  });
  cluster.on('listening', (_, { port }) => console.log(port));
  cluster.on('exit', (_, code) => (process.exitCode = Math.max(process.exitCode ?? 0, code ?? 1)));
  Array.from({ length: Number(workers) }, () => cluster.fork());
} else {
  const made = makeServer('v2', { routed: true, eventStore: new EventStore(address) });
  const server = http.createServer(made.listener);
  process.once('SIGTERM', async () => {
    await drain();
    server.close();
    await made.closeTransports();
    process.disconnect();
    await once(server, 'close');
    process.exit(0);
  });
  server.listen(0, '127.0.0.1');
}
