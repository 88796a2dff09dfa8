// Whose events are these? (F-01, F-02, F-03, F-05, F-08, F-09, I7)
import assert from 'node:assert/strict';

import { connectLine } from './kit/clients.mjs';
import { Peer, counts, ids, lastId, logs, refusal, results, seen, unknownLike, upTo } from './kit/raw.mjs';
import { at, marked, newGate, open, serve, serveFor } from '../servers/node/transports.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

/** Calls a tool that waits at a gate, takes the first cursor and loses the connection. */
async function away(peer, words, name, id) {
  const reply = await peer.call('script', { steps: [`gate ${name}`, 'emit 1', `return ${words}`] }, id);
  const first = await reply.event();
  reply.drop();
  return first.id;
}

/** The response, what comes before it, and what may not come after it. */
const whole = async (reply) => [...(await reply.untilTerminal()), ...(await reply.settle())];

onEachLine(serve, (line, server) => {
  const peers = (...users) =>
    Promise.all(users.map((user) => Peer.open(server().port, undefined, user === '' ? {} : { 'x-user': user })));

  test('f01 other sessions result is never replayed', async () => {
    const [alice, bob] = await peers('', '');
    const [forAlice, forBob] = [newGate(), newGate()];
    const alices = await away(alice, forAlice, forAlice, 1);
    const bobs = await away(bob, forBob, forBob, 1);
    for (const name of [forBob, forAlice]) {
      open(name);
      await marked(`finished return ${name}`);
    }
    for (const [peer, cursor, words] of [
      [alice, alices, forAlice],
      [bob, bobs, forBob],
    ]) {
      const events = await whole(await peer.resume(cursor));
      assert.deepEqual([counts(events), results(events)], [[1], [words]]);
    }
  });

  test('f01 many sessions with the same ids get their own', async () => {
    const name = newGate();
    const all = await peers(...Array(12).fill(''));
    const calls = all.flatMap((peer, number) => [1, 2].map((id) => ({ peer, id, words: `${name}-${number}-${id}` })));
    for (const call of calls) {
      call.cursor = await away(call.peer, call.words, name, call.id);
    }
    open(name);
    await Promise.all(calls.map(({ words }) => marked(`finished return ${words}`)));
    const check = async ({ peer, id, words, cursor }) => {
      const events = await whole(await peer.resume(cursor));
      assert.deepEqual(results(events), [words]);
      assert.deepEqual(events.filter(({ isTerminal }) => isTerminal).map(({ message }) => message.id), [id]);
    };
    await Promise.all(calls.map(check));
  });

  test('f01 stock client accepts only its own result', async (t) => {
    // The pause before the clients come back is long enough for both calls to finish while they are away.
    const slow = await serveFor(t, line, { retryInterval: 600 });
    const [alice, bob] = [await connectLine(t, line, slow.port), await connectLine(t, line, slow.port)];
    const [first, second] = [newGate(), newGate()];
    const calls = [];
    for (const [client, name] of [
      [alice, first],
      [bob, second],
    ]) {
      calls.push(client.script('close', `gate ${name}`, `return ${name}`));
      await at(name);
    }
    for (const name of [second, first]) {
      open(name);
      await marked(`finished return ${name}`);
    }
    assert.deepEqual(await Promise.all(calls), [first, second]);
  });

  test('f02 standalone streams of two sessions are apart', async () => {
    const [alice, bob] = await peers('', '');
    const cursors = [];
    for (const [peer, words] of [
      [alice, 'a1'],
      [bob, 'b1'],
    ]) {
      const stream = await peer.listen();
      await peer.ask(`standalone ${words}`);
      const events = await stream.some(1);
      assert.deepEqual(logs(events), [words]);
      cursors.push(lastId(events));
      stream.drop();
    }
    await alice.ask('standalone a2');
    await bob.ask('standalone b2');
    await alice.ask('standalone a3');
    for (const [peer, cursor, wanted] of [
      [alice, cursors[0], ['a2', 'a3']],
      [bob, cursors[1], ['b2']],
    ]) {
      const stream = await peer.resume(cursor);
      const events = [...(await stream.some(wanted.length)), ...(await stream.settle())];
      assert.deepEqual(logs(events), wanted);
      stream.close();
    }
  });

  test('f02 questions stay in their session', async () => {
    const [alice, bob] = await peers('', '');
    const call = await alice.script('elicit for alice');
    const { id: cursor } = await call.event();
    const question = (await call.some(1)).at(-1).message;
    assert.equal(question.method, 'elicitation/create');
    call.drop();
    const foreign = await bob.resume(cursor);
    assert.ok(!(await seen(foreign))[2].includes('for alice'));
    foreign.drop();
    // Neither may bob answer it: the id is only known in alice's session.
    await bob.respond(question.id, { action: 'accept', content: { name: 'bob' } });
    const again = await alice.resume(cursor);
    assert.equal((await again.some(1)).at(-1).message.id, question.id);
    await alice.respond(question.id, { action: 'accept', content: { name: 'alice' } });
    assert.deepEqual(results(await again.untilTerminal()), ['alice']);
  });

  test('f03 foreign cursor of a finished call is an unknown one', async () => {
    const [alice, bob] = await peers('', '');
    const events = await (await alice.script('emit 2', 'return secret-of-alice')).rest();
    const foreign = await seen(await bob.resume(events[0].id));
    const unknown = await seen(await bob.resume(unknownLike(events[0].id)));
    assert.ok(!foreign[2].includes('secret-of-alice'));
    assert.deepEqual(foreign, unknown);
  });

  test('f03 foreign cursor of a running call is an unknown one', async () => {
    const [alice, bob] = await peers('', '');
    const name = newGate();
    const reply = await alice.script('emit 1', `gate ${name}`, `return ${name}`);
    const cursor = lastId(await reply.some(1));
    const [foreign, unknown] = [await bob.resume(cursor), await bob.resume(unknownLike(cursor))];
    assert.deepEqual(await seen(foreign), await seen(unknown));
    foreign.drop();
    unknown.drop();
    open(name);
    // The owner's connection was not taken over by the stranger.
    assert.deepEqual(results(await reply.untilTerminal()), [name]);
  });

  test('f03 foreign standalone cursor gives the callers own stream', async () => {
    const [alice, bob] = await peers('', '');
    const stream = await alice.listen();
    await alice.ask('standalone a1');
    const cursor = lastId(await stream.some(1));
    stream.drop();
    await alice.ask('standalone a2');
    for (const presented of [cursor, unknownLike(cursor)]) {
      const reply = await bob.resume(presented);
      assert.equal(reply.status, 200);
      await bob.ask('standalone b1');
      while (!logs(await reply.some(1)).includes('b1'));
      await reply.settle();
      // In quotes: two letters may well be in an id.
      assert.ok(!reply.raw.includes('"a2"'));
      reply.drop();
    }
  });

  test('f05 a session belongs to its principal', async () => {
    // The same session id with the token of another client, of another user of the same client, and with none.
    const [alice] = await peers('app/alice');
    const events = await (await alice.script('emit 1', 'return private')).rest();
    for (const headers of [{ 'x-user': 'other/alice' }, { 'x-user': 'app/mallory' }, { 'x-user': 'app' }, {}]) {
      const thief = new Peer(server().port, undefined, headers);
      const answers = async (sessionId) => {
        thief.sessionId = sessionId;
        const replies = [];
        for (const reply of [await thief.script('return y'), await thief.get(), await thief.resume(events[0].id)]) {
          replies.push(await seen(reply, 100));
          reply.drop();
        }
        replies.push(await seen(await thief.delete()));
        return replies;
      };
      const stolen = await answers(alice.sessionId);
      assert.deepEqual(stolen.map(([status]) => status), [404, 404, 404, 404], JSON.stringify(headers));
      assert.deepEqual(stolen, await answers('0'.repeat(36)), 'as if there were no such session');
    }
    assert.deepEqual(results(await (await alice.resume(events[0].id)).untilTerminal()), ['private']);
  });

  test('auth reaches handlers and binds the session', ours, async () => {
    const [one, two] = await peers('app/one', 'app/two');
    const name = newGate();
    const cursors = [];
    for (const peer of [one, two]) {
      cursors.push(await away(peer, `${name} ${peer.headers['x-user']}`, name, 1));
    }
    open(name);
    for (const [index, peer] of [one, two].entries()) {
      const own = await (await peer.resume(cursors[index])).untilTerminal();
      assert.deepEqual(results(own), [`${name} ${peer.headers['x-user']}`]);
      const foreign = await seen(await peer.resume(cursors[1 - index]));
      assert.deepEqual(foreign, await seen(await peer.resume(unknownLike(cursors[1 - index]))));
    }
  });

  test('f08 duplicate id in flight is refused and the first is untouched', async () => {
    const [peer] = await peers('');
    const name = newGate();
    const first = await peer.call('script', { steps: [`gate ${name}`, 'emit 1', 'return first'] }, 7);
    await at(name);
    const again = await peer.call('script', { steps: ['return second'] }, 7);
    const [status, code] = await refusal(again);
    assert.deepEqual([status, code], [400, -32600]);
    open(name);
    const events = await first.untilTerminal();
    assert.deepEqual([counts(events), results(events)], [[1], ['first']]);
    assert.equal(await peer.ask('return after'), 'after');
  });

  test('f08 number and text ids are two requests', async () => {
    const [peer] = await peers('');
    const [one, other] = [newGate(), newGate()];
    const number = await peer.call('script', { steps: [`gate ${one}`, 'emit 2', 'return number'] }, 3);
    await at(one);
    const words = await peer.call('script', { steps: [`gate ${other}`, 'emit 1', 'return text'] }, '3');
    assert.equal(words.status, 200);
    await at(other);
    open(one, other);
    for (const [reply, id, wanted, steps] of [
      [number, 3, 'number', 2],
      [words, '3', 'text', 1],
    ]) {
      const events = await reply.untilTerminal();
      assert.deepEqual([events.at(-1).message.id, results(events), counts(events)], [id, [wanted], upTo(steps)]);
      const tokens = events.map(({ message }) => message?.params?.progressToken).filter((token) => token !== undefined);
      assert.deepEqual([...new Set(tokens)], [id]);
    }
  });

  test('f09 request id cannot name the standalone stream', async () => {
    for (const id of ['_GET_stream', 'standalone', 'GET', '']) {
      const [peer] = await peers('');
      const stream = await peer.listen();
      const name = newGate();
      const call = await peer.call('script', { steps: [`gate ${name}`, 'standalone to all', `return ${name}`] }, id);
      open(name);
      const events = await call.untilTerminal();
      assert.deepEqual([logs(events), results(events)], [[], [name]]);
      assert.deepEqual(logs(await stream.some(1)), ['to all']);
      stream.close();
    }
  });

  test('f09 closing such a request leaves the standalone stream open', async () => {
    const [peer] = await peers('');
    const stream = await peer.listen();
    const name = newGate();
    const call = await peer.call('script', { steps: ['close', `gate ${name}`, 'return x'] }, '_GET_stream');
    const events = await call.rest();
    assert.deepEqual(logs(await stream.settle(200)), []);
    assert.ok(!stream.ended);
    open(name);
    assert.deepEqual(results(await (await peer.resume(lastId(events))).untilTerminal()), ['x']);
    await peer.ask('standalone still here');
    assert.deepEqual(logs(await stream.some(1)), ['still here']);
    stream.drop();
  });

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
});
