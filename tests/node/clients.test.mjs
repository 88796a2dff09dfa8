// The unmodified TypeScript clients against our servers, in Node and in Python. (F-70, F-73)
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { CLIENTS, connect } from './kit/clients.mjs';
import { sleep, until } from './kit/raw.mjs';
import { newGate, open, serve } from '../servers/node/transports.mjs';

const upTo = (count) => Array.from({ length: count }, (_, index) => index + 1);

/** A Tailrope server of the Python package, as the Python tests start it. */
async function servePython(flavor) {
  const root = fileURLToPath(new URL('../../', import.meta.url));
  const python = `${root}.venv/${flavor}/bin/python`;
  if (!existsSync(python)) {
    return undefined;
  }
  const child = spawn(python, ['-m', 'servers.app', '--flavor', flavor], {
    cwd: `${root}tests/python`,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const port = Number((await lines.next()).value.split(' ')[1]);
  const open = (name) => fetch(`http://127.0.0.1:${port}/ctl/open?gate=${name}`, { method: 'POST' });
  return { port, open, close: () => child.kill() };
}

/** `server()` has a port, and opens the gates of its tools. */
function survives(which, server) {
  test(`${which} loses nothing in twenty polls`, async () => {
    const client = await connect(which, server().port);
    const steps = Array.from({ length: 20 }, () => ['emit 3', 'close', 'emit 2']).flat();
    assert.equal(await client.script(...steps, 'return x'), 'x');
    assert.deepEqual(client.progress, upTo(100));
    await client.close();
  });

  test(`${which} survives ten closes that deliver nothing`, async () => {
    const client = await connect(which, server().port);
    // Closed, and closed again each time the client is back, with nothing in between.
    const before = client.gets;
    const gate = newGate();
    const call = client.script('close hold=0', `gate ${gate}`, 'emit 2', 'return x');
    await until(() => client.gets >= before + 10);
    await server().open(gate);
    assert.equal(await call, 'x');
    assert.deepEqual(client.progress, [1, 2]);
    await client.close();
  });
}

for (const line of LINES) {
  describe(line, () => {
    let server;
    before(async () => {
      server = { ...(await serve(line)), open };
    });
    after(() => server.close());

    for (const which of CLIENTS) {
      survives(which, () => server);

      test(`${which} hears standalone notifications across a close`, async () => {
        const client = await connect(which, server.port);
        await sleep(50);
        for (let round = 0; round < 3; round++) {
          await client.script(`standalone ${round}`, 'close_standalone');
        }
        await until(() => client.logs.length >= 3);
        assert.deepEqual(client.logs, ['0', '1', '2']);
        await client.close();
      });

      test(`${which} keeps two calls at once apart`, async () => {
        const client = await connect(which, server.port);
        const gate = newGate();
        const one = client.script('emit 1', 'close', `gate ${gate}`, 'return one');
        const two = client.script('emit 1', 'close', `gate ${gate}`, 'return two');
        await sleep(60);
        open(gate);
        assert.deepEqual(await Promise.all([one, two]), ['one', 'two']);
        await client.close();
      });

      test(`f73 ${which} does not poll a lost stream for ever`, async () => {
        const client = await connect(which, server.port);
        const gate = newGate();
        const call = client.script('close', `gate ${gate}`);
        const failed = assert.rejects(call);
        await sleep(50);
        for (const transport of server.transports.values()) {
          await transport.close();
        }
        server.transports.clear();
        open(gate);
        await sleep(200);
        const gets = client.gets;
        await sleep(500);
        assert.ok(client.gets <= gets + 3, `${client.gets - gets} requests after the end`);
        await client.close();
        await failed;
      });
    }
  });
}

for (const flavor of ['mcp1', 'mcp2']) {
  const server = await servePython(flavor);
  describe(`python ${flavor}`, { skip: server === undefined && 'needs `make setup`' }, () => {
    after(() => server?.close());
    for (const which of CLIENTS) {
      survives(which, () => server);
    }
  });
}
