// One test server in a process of its own: node run.mjs LINE [OPTIONS JSON]. Prints `READY PORT`. Lines on
// stdin: `state` is answered with the server's state, `drain MS` with whether everything was closed, `close`
// closes the listener and leaves the rest to the process.
import { createInterface } from 'node:readline';

import { EventStore, drain, stats } from 'tailrope/mcp';

import { passed, serve } from './servers.mjs';

const [line, options = '{}'] = process.argv.slice(2);
const { store, ...transportOptions } = JSON.parse(options);
const eventStore = store && new EventStore('memory:', store);
const server = await serve(line, { ...transportOptions, eventStore });
console.log(`READY ${server.port}`);
createInterface(process.stdin)
  .on('line', async (line) => {
    const [word, argument] = line.split(' ');
    if (word === 'state') {
      global.gc?.();
      const { rss } = process.memoryUsage();
      console.log(JSON.stringify({ rss, stats: stats(), passed: [...passed], errors: server.errors.map(String) }));
    } else if (word === 'drain') {
      console.log(JSON.stringify(await drain({ retryMs: Number(argument) })));
    } else if (word === 'close') {
      server.stop();
      process.stdin.unref();
      console.log('null');
    }
  })
  .on('close', () => process.exit());
