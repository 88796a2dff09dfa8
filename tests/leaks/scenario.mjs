// What servers and clients do in Node, over the native half alone: node --expose-gc scenario.mjs [ROUNDS].
//
// Node under valgrind takes too long, so this looks at the process's memory: after a warm-up, batches of rounds must not
// make it grow. Then the same with something kept in each round on purpose: if that is not seen, nothing was shown.
import { readFileSync } from 'node:fs';

import { ClientOptions, ClientStream, Engine, Refusal, Store } from '../../bindings-node/lib/native.mjs';
import { head } from '../node/kit/head.mjs';

const ROUNDS = Number(process.argv[2] ?? 1_500);
const BATCHES = 8;
const PAGE_BYTES = 4096;
/** What a round may seem to keep: allocators do not give every page back. A kept engine is far more. */
const BYTES_A_ROUND = 256;
const HEAD = {
  accept: 'application/json, text/event-stream',
  contentType: 'application/json',
  protocolVersion: '2025-11-25',
  sessionId: 'one',
};
const initialize = {
  protocolVersion: '2025-11-25',
  capabilities: {},
  clientInfo: { name: 'x', version: '1' },
};
const nothing = () => {};

const body = (id, method, params) => JSON.stringify({ jsonrpc: '2.0', id, method, params });

/** What a connection has by now, as text. */
function read(connection) {
  let whole = '';
  for (let data; (data = connection.poll(65_536)[2]); ) {
    whole += data;
  }
  return whole;
}

function serve(store) {
  const engine = new Engine(store, {}, nothing, nothing, nothing);
  const session = engine.openSession('one', '', null, 2, ['2025-11-25'], 5);
  const admitted = (admission) => {
    if (admission instanceof Refusal) {
      throw new Error(admission.message);
    }
    return admission;
  };
  const admit = (method, payload, more) =>
    admitted(session.admit(head({ ...HEAD, method, ...more }), null, null, payload, false));
  const first = head({ ...HEAD, method: 'POST', sessionId: undefined });
  const opening = admitted(engine.admit(first, null, body(0, 'initialize', initialize), false, 2, ['2025-11-25']));
  const opened = session.open(opening, false);
  session.respond(0, JSON.stringify({ jsonrpc: '2.0', id: 0, result: initialize }));
  read(opened);
  const call = session.open(admit('POST', body(1, 'tools/call', { name: 'x' })), false);
  for (let n = 0; n < 5; n++) {
    session.notify(1, JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params: { n } }), 0);
  }
  const [, cursor] = /^id: (.+)$/m.exec(read(call));
  session.closeConnection(1, 5, null);
  read(call);
  const resumed = session.open(admit('GET', '', { lastEventId: cursor }), false);
  session.respond(1, JSON.stringify({ jsonrpc: '2.0', id: 1, result: { x: 'y'.repeat(1_000) } }));
  if (!read(resumed).includes('yyy')) {
    throw new Error('the resume did not bring the response');
  }
  resumed.lost();
  engine.hookLog().dropScope('scope');
  session.end();
  engine.drain(5);
  engine.tick();
  engine.leave();
  return engine;
}

function follow() {
  const stream = ClientStream.posted('[1]', new ClientOptions({}), true, 0);
  stream.start();
  stream.head(0, 0, 200, 'text/event-stream', null);
  stream.bytes(1, 0, Buffer.from('id: 1\ndata: {"jsonrpc":"2.0","method":"x"}\n\nid: 2\ndata:\n\n'));
  stream.end(2, 0);
  stream.tick(10_000, 0);
  stream.abort(10_001, 0);
}

const resident = () => Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * PAGE_BYTES;

/** The bytes that a round keeps, over the better half of the batches. */
async function kept(onRound) {
  const growths = [];
  for (let batch = 0, before = resident(); batch < BATCHES; batch++) {
    for (let round = 0; round < ROUNDS; round++) {
      onRound();
      if (round % 50 === 0) {
        // Finalizers of native objects run between turns.
        gc();
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
    gc();
    await new Promise((resolve) => setTimeout(resolve, 20));
    gc();
    const after = resident();
    growths.push((after - before) / ROUNDS);
    before = after;
  }
  // The first are the warm-up.
  const later = growths.slice(BATCHES / 2).sort((a, b) => a - b);
  return (later[1] + later[2]) / 2;
}

const memory = new Store('memory:', {});
const clean = await kept(() => {
  serve(memory);
  follow();
});
const hoard = [];
const planted = await kept(() => {
  hoard.push(serve(memory));
  follow();
});
const [grows, planned] = [clean, planted].map(Math.round);
console.log(
  `node: ${ROUNDS * BATCHES} rounds; each keeps ${grows} bytes, and ${planned} with an engine kept on purpose`,
);
process.exit(clean > BYTES_A_ROUND || planted <= BYTES_A_ROUND ? 1 : 0);
