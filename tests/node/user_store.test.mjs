// Event stores that users wrote against the SDKs' interface. (I9, F-10, F-12)
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { Peer, counts, ids, lastId, results, sleep } from './kit/raw.mjs';
import { LINES, newGate, open, packages, serve } from './kit/servers.mjs';

const upTo = (count) => Array.from({ length: count }, (_, index) => index + 1);

/** What a user might write: one log for all streams, slow and failing where a test says so. */
class LabStore {
  events = [];
  latency = () => 0;
  fails = () => false;
  replays = 0;

  async storeEvent(streamId, message) {
    await sleep(this.latency());
    if (this.fails(message)) {
      throw new Error('password=secret');
    }
    const id = `lab_${this.events.length}`;
    this.events.push({ id, streamId, message });
    return id;
  }

  async replayEventsAfter(lastEventId, { send }) {
    this.replays += 1;
    const from = this.events.findIndex(({ id }) => id === lastEventId);
    if (from === -1) {
      throw new Error('no such event');
    }
    const { streamId } = this.events[from];
    for (const event of this.events.slice(from + 1)) {
      if (event.streamId === streamId) {
        await sleep(0);
        await send(event.id, event.message);
      }
    }
    return streamId;
  }
}

for (const line of LINES) {
  describe(line, () => {
    test('a users store keeps the events and its ids are on the wire', async () => {
      const eventStore = new LabStore();
      const server = await serve(line, { eventStore });
      const peer = await Peer.open(server.port);
      const events = await (await peer.script('emit 2', 'close', 'emit 2', 'return x')).rest();
      assert.ok(events[0].isPriming && events[0].retry === 20);
      assert.ok(ids(events).every((id) => id.startsWith('lab_')));
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts([...events, ...rest]), results(rest)], [[1, 2, 3, 4], ['x']]);
      assert.ok(eventStore.events.every(({ streamId }) => /^[0-9a-f]+$/.test(streamId.replace(/[-_.:]/g, ''))));
      await server.close();
    });

    test('f12 wire order is emission order whatever the store latency', async () => {
      const eventStore = new LabStore();
      eventStore.latency = () => Math.random() * 6;
      const server = await serve(line, { eventStore });
      const peer = await Peer.open(server.port);
      const events = await (await peer.script('emit 30', 'return x')).rest();
      assert.deepEqual([counts(events), results(events)], [upTo(30), ['x']]);
      await server.close();
    });

    test('f10 resumes of a running emitter lose and repeat nothing', async () => {
      const eventStore = new LabStore();
      eventStore.latency = () => Math.random() * 3;
      const server = await serve(line, { eventStore });
      const peer = await Peer.open(server.port);
      const gate = newGate();
      let reply = await peer.script(`until ${gate}`);
      const got = [];
      for (let round = 0; round < 10; round++) {
        const events = await reply.some(3);
        got.push(...counts(events));
        reply.drop();
        reply = await peer.resume(lastId(events));
      }
      open(gate);
      const rest = await reply.rest();
      got.push(...counts(rest));
      assert.deepEqual(got, upTo(got.length));
      assert.deepEqual(results(rest), [String(got.length)]);
      await server.close();
    });

    test('a store that fails harms one event', async () => {
      const eventStore = new LabStore();
      const server = await serve(line, { eventStore });
      packages[line].setLog(() => {});
      const peer = await Peer.open(server.port);
      eventStore.fails = (message) => message.result?.content?.[0].text === 'poison';
      const events = await (await peer.script('emit 1', 'return poison')).rest();
      const [error] = results(events);
      assert.ok(error.code < 0 && !JSON.stringify(events).includes('secret'));
      assert.equal(await peer.ask('emit 1', 'return fine'), 'fine');
      await server.close();
    });

    test('f01 one store serves several sessions and none reads another', async () => {
      const eventStore = new LabStore();
      const server = await serve(line, { eventStore });
      const [one, two] = [await Peer.open(server.port), await Peer.open(server.port)];
      const events = await (await one.script('emit 1', 'return secret')).rest();
      await two.ask('return x');
      for (const { id } of events) {
        const reply = await two.resume(id);
        assert.ok(!(await reply.body()).includes('secret'));
      }
      await server.close();
    });
  });
}
