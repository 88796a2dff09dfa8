// Sessions whose host does with their transports what the wire does not show. (F-54, I7)
import assert from 'node:assert/strict';
import { serve, serveFor } from '../servers/node/transports.mjs';
import { ids, lastId, Peer } from './kit/raw.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

onEachLine(serve, (line, server) => {
  test('two sessions with one id stay apart', ours, async (t) => {
    const same = await serveFor(t, line, { sessionIdGenerator: () => 'same' });
    const one = await Peer.open(same.port);
    const first = same.transports.get('same');
    same.transports.delete('same');
    const two = await Peer.open(same.port);
    const events = await (await two.script('return two')).rest();
    const second = same.transports.get('same');
    same.transports.set('same', first);
    assert.equal(await one.ask('return one'), 'one');
    const stolen = await (await one.resume(ids(events)[0])).blocks();
    assert.ok(!JSON.stringify(stolen).includes('two'));
    await second.close();
  });

  test('deleted session is 404 by its transport, which the host has not forgotten', ours, async (t) => {
    const peer = await Peer.open(server().port);
    const { transports } = server();
    const transport = transports.get(peer.sessionId);
    const events = await (await peer.script('return x')).rest();
    assert.equal((await peer.delete()).status, 200);
    transports.set(peer.sessionId, transport);
    t.after(() => transports.delete(peer.sessionId));
    const replies = [await peer.get(), await peer.resume(lastId(events)), await peer.script('x'), await peer.delete()];
    for (const reply of replies) {
      assert.equal(reply.status, 404);
      assert.ok((await reply.body()).includes('"code":-32001,"message":"Session not found"'));
    }
  });
});
