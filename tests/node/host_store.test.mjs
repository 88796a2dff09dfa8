// What JavaScript lets a user's own EventStore do: throw and answer anything. (I9)
// Its slowness, its failures and its ids are tests/wire/test_user_store.py.
import assert from 'node:assert/strict';
import { LabStore } from '../servers/node/stores.mjs';
import { acting, at, newGate, serveFor } from '../servers/node/transports.mjs';
import { Peer, results, within } from './kit/raw.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

async function works(peer) {
  assert.equal(await peer.ask('emit 2', 'return fine'), 'fine');
}

onEachLine(
  async () => undefined,
  (line) => {
    async function lab(t, store = new LabStore()) {
      const { port } = await serveFor(t, line, { eventStore: store });
      return { store, peer: await Peer.open(port) };
    }

    const settles = {
      'throws what is no error': () => Promise.reject(7),
      'throws nothing': () => Promise.reject(),
      'throws at once': () => {
        throw new Error('now');
      },
      'gives a lone surrogate': async () => '\udc80',
      'gives an id without a promise': () => 12,
    };
    for (const [what, answer] of Object.entries(settles)) {
      test(`i9 whatever a store does its event is settled, ${what}`, ours, async (t) => {
        const store = new LabStore();
        const storeEvent = store.storeEvent.bind(store);
        let faults = 1;
        store.storeEvent = (stream, message) => {
          const isFault = message.method === 'notifications/progress' && faults-- > 0;
          return isFault ? answer() : storeEvent(stream, message);
        };
        const { peer } = await lab(t, store);
        const events = await (await peer.script('try emit 1', 'try emit 1')).untilTerminal();
        const outcomes = JSON.parse(results(events)[0]);
        assert.match(outcomes[0], /^raised/);
        assert.equal(outcomes[1], 'ok');
        await works(peer);
      });
    }

    for (const bad of [7, '\udc80', {}]) {
      test(`i9 a replay of nonsense is a store fault, ${JSON.stringify(bad)}`, ours, async (t) => {
        const { store, peer } = await lab(t);
        store.replayEventsAfter = async (_, { send }) => {
          await send(bad, { jsonrpc: '2.0', method: 'notifications/x' });
          return bad;
        };
        const reply = await peer.resume('999');
        assert.ok([200, 400].includes(reply.status));
        await within(reply.body(), 60_000);
        await works(peer);
      });
    }

    test('a send that waits for the store when its session ends is told', ours, async (t) => {
      const { store, peer } = await lab(t);
      const [name, hang] = [newGate(), newGate()];
      const reply = await peer.call('act', { name });
      const context = await acting(name);
      store.plan({ gate: hang });
      const told = assert.rejects(context.log('x'), { name: 'TailropeError', code: 'session_ended' });
      await at(hang);
      await peer.delete();
      await within(told);
      assert.ok(results(await reply.rest())[0].code < 0);
    });
  },
);
