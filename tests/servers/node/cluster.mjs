// Several servers in a cluster, on one port: node cluster.mjs WORKERS --flavor node-v2 --port PORT ..., as app.mjs takes them
//
// The primary passes connections on to its workers in turn. Each worker answers what tests ask below `/ctl/` at a port of its
// own, too, and prints `WORKER PORT PID`. The primary passes SIGTERM and SIGINT on, and ends when all of them have.
import cluster from 'node:cluster';

const [workers, ...args] = process.argv.slice(2);

cluster.setupPrimary({ exec: new URL('./app.mjs', import.meta.url).pathname, args });
cluster.on('exit', (_, code) => {
  process.exitCode = Math.max(process.exitCode ?? 0, code ?? 1);
});
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => {
    for (const worker of Object.values(cluster.workers)) {
      worker.process.kill(signal);
    }
  });
}
Array.from({ length: Number(workers) }, () => cluster.fork());
