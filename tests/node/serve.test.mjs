// serve: an endpoint on a port that the front has. What its sessions are on the wire tests/wire says, which asks such a server, too.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import http from 'node:http';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

import express from 'express';
import { Hono } from 'hono';
import { Front } from '../../bindings-node/lib/native.mjs';
import { buildServer } from '../servers/node/tools.mjs';
import { at, logged, newGate, open, packages } from '../servers/node/transports.mjs';
import { folderFor } from './kit/addresses.mjs';
import { CLIENTS, connect } from './kit/clients.mjs';
import { run } from './kit/program.mjs';
import { ACCEPT, counts, lastId, Peer, request, results, seen, until, within } from './kit/raw.mjs';
import { countWork, served, servedFor } from './kit/serving.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const program = fileURLToPath(new URL('kit/serving.mjs', import.meta.url));
const text = async (url, init) => (await fetch(url, init)).text();

/** Gives the test a folder for temporary files of its own, and lists what is in it. */
function foldersOf(t) {
  const { TMPDIR } = process.env;
  const folder = folderFor(t);
  process.env.TMPDIR = folder;
  t.after(() => {
    process.env.TMPDIR = TMPDIR ?? '';
  });
  return () => readdirSync(folder);
}

/** A process that serves, with its port and the sessions that it has opened. */
async function started(t, line, address, port = 0) {
  const child = spawn(process.execPath, [program, line, address, '2000', String(port)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.after(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout });
  const sessions = new Set();
  const [first] = await within(once(lines, 'line'), 60_000);
  lines.on('line', (id) => sessions.add(id));
  return { child, sessions, port: Number(first) };
}

onEachLine(
  async () => undefined,
  (line) => {
    for (const which of CLIENTS) {
      test(`${which} sees every event of a call that is closed and polled`, ours, async (t) => {
        const { port, url } = await servedFor(t, line);
        assert.equal(url, `http://127.0.0.1:${port}/mcp`);
        const face = await connect(which, port);
        assert.equal(await face.script('emit 2', 'close', 'emit 1', 'close', 'emit 1', 'return x'), 'x');
        assert.deepEqual(face.progress, [1, 2, 3, 4]);
        await face.close();
      });
    }

    test('polls and listeners run no JavaScript, and a message is taken once', ours, async (t) => {
      const { port } = await servedFor(t, line);
      const peer = await Peer.open(port);
      const gate = newGate();
      const work = countWork(t);
      const reply = await peer.script('emit 1', 'close', `gate ${gate}`, 'emit 1', 'return x');
      const first = await reply.rest();
      await at(gate);
      assert.deepEqual(work, { passedOn: 0, takes: 1 });
      for (let poll = 0; poll < 5; poll++) {
        (await peer.resume(lastId(first))).drop();
      }
      const listening = await peer.listen();
      await listening.event();
      const last = await peer.resume(lastId(first));
      await last.event();
      assert.deepEqual(work, { passedOn: 0, takes: 1 });
      open(gate);
      const rest = await last.untilTerminal();
      assert.deepEqual([counts([...first, ...rest]), results(rest)], [[1, 2], ['x']]);
      assert.deepEqual(work, { passedOn: 0, takes: 1 });
    });

    test('handlers see the request, and answer the questions of the server', ours, async (t) => {
      const { port } = await servedFor(t, line);
      const peer = await Peer.open(port);
      const work = countWork(t);
      const reply = await peer.call('header', { name: 'x-seen' }, 5, { 'x-seen': 'yes' });
      assert.deepEqual(results(await reply.rest()), ['yes']);
      assert.equal(work.passedOn, 0);
      // Node has rules of its own for what comes twice, so that is Node's.
      const twice = await peer.call('header', { name: 'x-seen' }, 6, { 'x-seen': ['one', 'two'] });
      assert.deepEqual(results(await twice.rest()), ['one, two']);
      assert.equal(work.passedOn, 1);
    });

    test('a session of which code of the user has to see the requests stays with Node', ours, async (t) => {
      const { EventStore } = packages[line];
      let events = 0;
      const kinds = [
        { principal: () => 'alice' },
        { authenticate: () => ({ token: '', clientId: 'alice', scopes: [] }) },
        { eventStore: { storeEvent: async (stream) => `${stream}/${++events}`, async replayEventsAfter() {} } },
        { eventStore: new EventStore('memory:', { identityHeaders: ['x-own'] }) },
      ];
      const work = countWork(t);
      for (const options of kinds) {
        const { port } = await servedFor(t, line, options);
        const peer = await Peer.open(port);
        Object.assign(work, { passedOn: 0, takes: 0 });
        assert.equal(await peer.ask('return x'), 'x');
        assert.deepEqual(work, { passedOn: 1, takes: 0 });
      }
    });

    test('what is refused, or needs no answer, is answered as on the first door', ours, async (t) => {
      const { port } = await servedFor(t, line);
      const { createResumableMcpHandler: make = packages[line].createSessionRouter } = packages[line];
      const router = make(() => buildServer(line), { retryInterval: 20 });
      const direct = http.createServer(router.node).listen(0, '127.0.0.1');
      await once(direct, 'listening');
      t.after(async () => {
        await router.close();
        direct.closeAllConnections();
        direct.close();
      });
      const peers = [await Peer.open(port), await Peer.open(direct.address().port)];
      const requests = [
        (peer) => peer.post('{"jsonrpc":"2.0","id":1,"method":5}'),
        (peer) => peer.post('{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}'),
        (peer) => peer.post('nothing'),
        (peer) => peer.post('[]'),
        (peer) => peer.post({ jsonrpc: '2.0', id: 1, method: 'tools/list' }, { accept: 'text/html' }),
        (peer) => peer.post({ jsonrpc: '2.0', id: 1, method: 'tools/list' }, { 'mcp-protocol-version': '1999-01-01' }),
        (peer) => peer.post('x'.repeat((4 << 20) + 1)),
        (peer) =>
          peer.post({ jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: 1, progress: 1 } }),
        (peer) => peer.respond(77, {}),
        (peer) => peer.get({ accept: 'text/html' }),
        (peer) => peer.get({ 'mcp-session-id': 'unknown' }),
        (peer) => peer.get({ 'last-event-id': 'unknown' }),
        (peer) => request(peer.port, 'PUT', { 'mcp-session-id': peer.sessionId }),
      ];
      const known = ({ connection: _, 'keep-alive': __, 'transfer-encoding': ___, ...headers }) => headers;
      for (const ask of requests) {
        const [ours, first] = await Promise.all(peers.map(async (peer) => seen(await ask(peer), 100)));
        assert.deepEqual([ours[0], known(ours[1]), ours[2]], [first[0], known(first[1]), first[2]]);
      }
    });

    test('all other paths are the app, whichever kind it is', ours, async (t) => {
      const none = await servedFor(t, line, { path: '/own' });
      const own = (path, serving = none) => `http://127.0.0.1:${serving.port}${path}`;
      assert.deepEqual(
        [(await fetch(own('/mcp'))).status, (await fetch(own('/own/'))).status, (await fetch(own('/own?x'))).status],
        [404, 404, 406],
      );

      const headers = [];
      const listener = (req, res) => {
        const { remoteAddress, remoteFamily, remotePort } = req.socket;
        headers.push(...Object.keys(req.headers), ...Object.keys(req.headersDistinct), ...req.rawHeaders);
        assert.ok(remotePort > 0);
        req.pipe(res.writeHead(201, { 'x-from': `${remoteAddress} ${remoteFamily}`, 'x-url': req.url }));
      };
      const plain = await servedFor(t, line, { app: listener });
      const sent = { method: 'POST', body: 'body', headers: { 'x-tailrope-peer': '10.0.0.1:1 http' } };
      const answered = await fetch(own('/any?x=1', plain), sent);
      const facts = [answered.status, answered.headers.get('x-from'), answered.headers.get('x-url')];
      assert.deepEqual([...facts, await answered.text()], [201, '127.0.0.1 IPv4', '/any?x=1', 'body']);
      assert.deepEqual(
        headers.filter((name) => name.toLowerCase() === 'x-tailrope-peer'),
        [],
      );

      const app = express();
      app.get('/ip', (req, res) => res.send(req.ip));
      assert.equal(await text(own('/ip', await servedFor(t, line, { app }))), '127.0.0.1');

      const hono = new Hono();
      hono.post('/echo', async (c) => c.text(`${c.req.header('x-tailrope-peer')} ${await c.req.text()}`));
      hono.get(
        '/lost',
        () =>
          new Response(null, {
            status: 204,
            headers: [
              ['set-cookie', 'a=1'],
              ['set-cookie', 'b=2'],
            ],
          }),
      );
      const failing = await servedFor(t, line, { app: { fetch: async () => Promise.reject(new Error('no page')) } });
      assert.equal((await fetch(own('/', failing))).status, 500);
      assert.match(logged.at(-1), /^error the app failed: Error: no page/);
      const web = await servedFor(t, line, { app: hono });
      assert.equal(await text(own('/echo', web), sent), 'undefined body');
      const lost = await fetch(own('/lost', web));
      assert.deepEqual([lost.status, lost.headers.getSetCookie()], [204, ['a=1', 'b=2']]);

      const upgrading = http.createServer(listener);
      upgrading.on('upgrade', (_, socket) => {
        socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n');
        socket.pipe(socket);
      });
      const { port } = await servedFor(t, line, { app: upgrading });
      const asked = http.get({ port, path: '/ws', headers: { connection: 'upgrade', upgrade: 'websocket' } });
      const [, socket] = await within(once(asked, 'upgrade'));
      socket.write('hello');
      assert.equal(String((await within(once(socket, 'data')))[0]), 'hello');
      socket.destroy();
    });

    test('pages of other sites do not use a server for this machine', ours, async (t) => {
      const status = async (port, headers) => (await request(port, 'GET', { accept: ACCEPT, ...headers })).status;
      const { port } = await servedFor(t, line);
      const peer = await Peer.open(port);
      const own = { 'mcp-session-id': peer.sessionId, 'mcp-protocol-version': peer.revision };
      assert.equal(await status(port, { ...own, origin: 'http://localhost:6274' }), 200);
      assert.equal(await status(port, { ...own, origin: 'http://evil.example' }), 403);
      assert.equal(await status(port, { ...own, host: 'evil.example' }), 403);
      assert.equal(await status(port, { ...own, host: 'localhost:1' }), 200);
      const listed = await servedFor(t, line, { allowedOrigins: ['http://app.example'] });
      assert.equal(await status(listed.port, { origin: 'http://app.example' }), 400);
      assert.equal(await status(listed.port, { origin: 'http://localhost' }), 403);
      const unchecked = await servedFor(t, line, { enableDnsRebindingProtection: false });
      assert.equal(await status(unchecked.port, { origin: 'http://evil.example' }), 400);
    });

    test('authenticate is asked of every request, and handlers get what it gives', ours, async (t) => {
      const users = { alice: { token: 'a', clientId: 'alice', scopes: [] } };
      const { port } = await servedFor(t, line, {
        authenticate({ method, url, headers }) {
          assert.deepEqual([/^[A-Z]+$/.test(method), url], [true, '/mcp']);
          return headers.authorization === 'broken'
            ? new Response('no', { status: 403, headers: { 'www-authenticate': 'Bearer' } })
            : users[headers.authorization];
        },
      });
      const refused = await request(port, 'POST', { authorization: 'broken' });
      assert.deepEqual(
        [refused.status, refused.headers['www-authenticate'], await refused.body()],
        [403, 'Bearer', 'no'],
      );
      assert.equal((await request(port, 'GET', {})).status, 401);
      const peer = await Peer.open(port, undefined, { authorization: 'alice' });
      assert.deepEqual(results(await (await peer.call('whoami', {})).rest()), ['alice']);
      peer.headers = {};
      assert.equal((await peer.listen()).status, 401);
    });

    test('options that are wrong, and a port that is taken, are refused', ours, async (t) => {
      const { serve } = packages[line];
      const folders = foldersOf(t);
      const server = () => buildServer(line);
      const wrong = [
        [{}, /server must be/],
        [{ server: buildServer(line) }, /server must be/],
        [{ server, port: -1 }, /port must be/],
        [{ server, port: '3000' }, /port must be/],
        [{ server, path: 'mcp' }, /path must be/],
        [{ server, app: {} }, /app must be/],
        [{ server, reusePort: 1 }, /reusePort must be/],
        [{ server, authenticate: 'x' }, /authenticate must be/],
        [{ server, retryIntervall: 1 }, /unknown option retryIntervall of serve\(\); did you mean retryInterval/],
      ];
      for (const [options, message] of wrong) {
        await assert.rejects(serve(options), { code: 'invalid_argument', message });
      }
      const { port } = await servedFor(t, line);
      await assert.rejects(served(line, { port }), { code: 'EADDRINUSE', message: /another process listens there/ });
      assert.equal(folders().length, 1);
      assert.throws(() => packages[line].createSessionRouter(server, { port }), /port is an option of serve\(\)/);
    });

    test('a drain under open streams loses nothing', ours, async (t) => {
      const folder = folderFor(t);
      const address = `sqlite:${folder}/events.db`;
      const first = await started(t, line, address);
      const peer = await Peer.open(first.port);
      const listening = await peer.listen();
      await listening.event();
      const reply = await peer.script('emit 1', 'elicit name', 'emit 1', 'return x');
      const before = await reply.some(2);
      await started(t, line, address, first.port);
      first.child.kill('SIGTERM');
      before.push(...(await reply.rest()));
      await listening.rest();
      // The other process has the port for itself, and relays the answer.
      const asked = before.find(({ message }) => message?.method === 'elicitation/create');
      assert.equal((await peer.respond(asked.message.id, { action: 'accept', content: { name: 'x' } })).status, 202);
      const after = await (await peer.resume(lastId(before))).untilTerminal();
      assert.deepEqual([counts([...before, ...after]), results(after)], [[1, 2], ['x']]);
      const [code] = first.child.exitCode === null ? await within(once(first.child, 'exit'), 30_000) : [0];
      assert.equal(code, 0);
      assert.equal(await peer.ask('return y'), 'y');
    });

    test('a shorter close of the front shortens the one that runs', ours, async (t) => {
      const fronts = new Set();
      const { serve } = Front.prototype;
      t.mock.method(Front.prototype, 'serve', function (...terms) {
        fronts.add(this);
        return serve.call(this, ...terms);
      });
      const { port } = await servedFor(t, line);
      const peer = await Peer.open(port);
      const gate = newGate();
      const call = await peer.script('emit 1', `gate ${gate}`, 'return x');
      await call.some(1);
      const [front] = fronts;
      const longer = front.close(3_600_000);
      await until(() =>
        request(port, 'GET', {}).then(
          () => false,
          () => true,
        ),
      );
      await within(Promise.all([front.close(0), longer]));
      // It is cut.
      await assert.rejects(call.rest());
      open(gate);
    });

    test('when one of two processes at one port is killed, the other goes on with its sessions', ours, async (t) => {
      const address = `sqlite:${folderFor(t)}/events.db`;
      const first = await started(t, line, address);
      const second = await started(t, line, address, first.port);
      const { port } = first;
      assert.equal(second.port, port);
      const peer = await Peer.open(port);
      const owner = () => [first, second].find(({ sessions }) => sessions.has(peer.sessionId));
      await until(async () => owner() !== undefined);
      const reply = await peer.script('emit 2', 'return x');
      const [primed, one] = [await reply.event(), await reply.event()];
      reply.drop();
      // Both read it, whichever process the system chooses.
      for (let read = 0; read < 6; read++) {
        const events = await (await peer.resume(lastId([primed, one]))).untilTerminal();
        assert.deepEqual([counts(events), results(events)], [[2], ['x']]);
      }
      owner().child.kill('SIGKILL');
      await once(owner().child, 'exit');
      const events = await (await peer.resume(lastId([primed, one]))).untilTerminal();
      assert.deepEqual([counts(events), results(events)], [[2], ['x']]);
      assert.equal(await peer.ask('emit 1', 'return y'), 'y');
    });

    test('a worker that is terminated frees its port and its folder', ours, async (t) => {
      const source = `
        import { parentPort, workerData } from 'node:worker_threads';
        const { served } = await import(workerData.kit);
        parentPort.postMessage((await served(workerData.line)).port);
      `;
      const code = new URL(`data:text/javascript,${encodeURIComponent(source)}`);
      const folders = foldersOf(t);
      for (let round = 0; round < 2; round++) {
        const kit = new URL('kit/serving.mjs', import.meta.url).href;
        const worker = new Worker(code, { workerData: { kit, line } });
        const [port] = await within(once(worker, 'message'), 60_000);
        const peer = await Peer.open(port);
        const calls = Array.from({ length: 10 }, () => peer.script('emit 2000', 'return x'));
        const settled = Promise.allSettled([peer.listen(), ...calls]);
        await worker.terminate();
        for (const { value } of await settled) {
          value?.drop();
        }
        await assert.rejects(request(port, 'GET', {}), 'the port is free');
        assert.deepEqual(folders(), []);
      }
    });

    test('a process ends by itself behind a close, and cleanly without one', ours, () => {
      for (const end of ['await serving.close();', 'process.exit(0);']) {
        const done = run(`
          import { Peer } from './kit/raw.mjs';
          import { served } from './kit/serving.mjs';
          const serving = await served('${line}');
          const peer = await Peer.open(serving.port);
          await (await peer.listen()).event();
          await peer.ask('emit 1', 'return x');
          const call = await peer.script('gate never');
          await call.event();
          call.rest().catch(() => {});
          ${end}
        `);
        assert.deepEqual([done.status, done.signal, done.stderr], [0, null, '']);
      }
    });
  },
);
