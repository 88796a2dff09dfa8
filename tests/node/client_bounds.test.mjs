// What streams hold and leave behind: connections, memory, listeners. (F-70, F-73)
import assert from 'node:assert/strict';
import v8 from 'node:v8';
import vm from 'node:vm';

import { sleep, turns, until, within } from './kit/raw.mjs';
import { event, listenTo, note, post, primed, result, ScriptedServer } from './kit/scripted.mjs';
import { called, parse, withoutSlack } from './kit/streams.mjs';
import { isFull, test } from './kit/test.mjs';

const RESUMES = isFull ? 2_000 : 200;
const STREAMS = isFull ? 200 : 60;

/** The client has read the end, which nothing tells: it is in this process, and what was sent has left. */
async function read(exchange) {
  await within(exchange.closed);
  await turns();
}

test('answered connection is used again', async (t) => {
  const { server, fetch, exchange, response } = await called(t);
  exchange.text(event('a', result(1)));
  assert.deepEqual(parse(await within(response.text())), [result(1)]);
  // The server ends a little later than the answer does.
  await sleep(20);
  exchange.end(': bye\n\n');
  await read(exchange);
  for (let id = 2; id < 5; id += 1) {
    const asked = fetch(server.url, post(id));
    const next = await server.next();
    next.head().end(event('a', result(id)));
    await within((await within(asked)).text());
    await read(next);
  }
  assert.equal(server.connections, 1);
});

test('answered connection that stays open is let go of', async (t) => {
  const { exchange, response } = await called(t);
  exchange.text(event('a', result(1)));
  assert.deepEqual(parse(await within(response.text())), [result(1)]);
  await within(exchange.closed);
});

test('body is read as the reader reads', async (t) => {
  const { server, exchange, response } = await called(t, { maxSilenceMs: 1_500 });
  const big = note('x'.repeat(64 << 10));
  let sent = 0;
  exchange.text(primed('a'));
  const isStuffed = () => exchange.buffered > 4 << 20;
  for (; !isStuffed() && sent < 1_000; sent += 1) {
    exchange.write(event(`b${sent}`, big));
    await sleep(0);
  }
  assert.ok(isStuffed(), 'all of it was taken');
  // Nobody reads: that is no silence of the server.
  await sleep(2_000);
  assert.equal(server.waiting, 0);
  exchange.end(event('c', result(1)));
  const messages = parse(await within(response.text(), 60_000));
  assert.deepEqual([messages.length, messages.at(-1)], [sent + 1, result(1)]);
  assert.equal(server.waiting, 0);
});

test('time in which nobody reads is no silence', async (t) => {
  const SILENCE_MS = 1_500;
  const { server, exchange, response } = await called(t, { maxSilenceMs: SILENCE_MS });
  const reader = response.body.getReader();
  exchange.text(primed('a') + event('b', note('x'.repeat(1 << 20))));
  await until(() => exchange.buffered === 0);
  await sleep(SILENCE_MS * 1.2);
  const decoder = new TextDecoder();
  let text = '';
  while (!text.endsWith('\n\n')) {
    text += decoder.decode((await within(reader.read())).value, { stream: true });
  }
  // Only now it listens again.
  await sleep(SILENCE_MS / 10);
  assert.equal(server.waiting, 0);
  exchange.end(event('c', result(1)));
  assert.deepEqual(parse(decoder.decode((await within(reader.read())).value)), [result(1)]);
});

test(`${RESUMES} resumes leave nothing behind`, { timeout: 120_000 }, async (t) => {
  const stop = new AbortController();
  let listeners = 0;
  for (const [name, by] of [
    ['addEventListener', 1],
    ['removeEventListener', -1],
  ]) {
    const stock = stop.signal[name].bind(stop.signal);
    stop.signal[name] = (...args) => {
      listeners += by;
      return stock(...args);
    };
  }
  const server = await ScriptedServer.open(t);
  const warnings = [];
  const warned = (warning) => warnings.push(warning);
  process.on('warning', warned);
  t.after(() => process.off('warning', warned));
  const fetch = withoutSlack();
  const asked = fetch(server.url, { ...post(1), signal: stop.signal });
  (await server.next()).head().text(primed('0', 0)).end();
  const response = await within(asked);
  let last = '';
  const read = (async () => {
    const decoder = new TextDecoder();
    for await (const chunk of response.body) {
      last = decoder.decode(chunk);
    }
  })();
  v8.setFlagsFromString('--expose-gc');
  const gc = vm.runInNewContext('gc');
  const size = async () => {
    // What finalizers hold goes with the next.
    for (let round = 0; round < 3; round += 1) {
      await sleep(10);
      gc();
    }
    return process.memoryUsage().heapUsed;
  };
  let before;
  for (let count = 1; count <= RESUMES; count += 1) {
    const exchange = await server.next();
    assert.equal(exchange.lastEventId, String(count - 1));
    // Without a message each would have to wait.
    exchange.head().end(event(count, note(count)));
    if (isFull && count === RESUMES / 4) {
      before = await size();
    }
  }
  assert.ok(server.sockets.size <= 4, `${server.sockets.size} sockets`);
  if (isFull) {
    const grown = (await size()) - before;
    assert.ok(grown < 1 << 20, `${grown} bytes more`);
  }
  (await server.next()).head().end(event('z', result(1)));
  await within(read);
  assert.deepEqual(parse(last), [result(1)]);
  await until(() => fetch.streams.size === 0);
  await until(() => listeners <= 1);
  assert.deepEqual(warnings, []);
});

test('answers that nobody reads are not kept', async (t) => {
  const server = await ScriptedServer.open(t);
  const fetch = withoutSlack();
  v8.setFlagsFromString('--expose-gc');
  const gc = vm.runInNewContext('gc');
  // While somebody has them, they are kept.
  const answers = [];
  const left = async (id) => {
    const asked = fetch(server.url, post(id));
    const exchange = (await server.next()).head().text(primed('a'));
    answers.push(await asked);
    await until(() => fetch.streams.export().length === id);
    exchange.end(event('b', result(id)));
    await until(() => fetch.streams.size === 0);
  };
  for (let id = 1; id <= 20; id += 1) {
    await left(id);
  }
  assert.equal(fetch.streams.export().length, 20);
  answers.length = 0;
  await until(() => {
    gc();
    return fetch.streams.export().length === 0;
  });
});

for (const how of ['signal', 'cancel']) {
  test(`streams cancelled at any time leave nothing behind: ${how}`, { timeout: 120_000 }, async (t) => {
    const server = await ScriptedServer.open(t);
    const fetch = withoutSlack();
    let served = 0;
    server.handle = (exchange) => {
      served += 1;
      exchange.head().text(primed(served, served % 7));
      if (served % 3 > 0) {
        exchange.end();
      }
    };
    const one = async (number) => {
      const stop = new AbortController();
      const init = number % 2 === 0 ? post(number) : listenTo();
      const text = (async () => {
        const response = await fetch(server.url, { ...init, signal: stop.signal });
        if (how === 'signal') {
          return response.text();
        }
        const reader = response.body.getReader();
        const read = reader.read();
        await sleep(number % 40);
        await reader.cancel();
        return read;
      })();
      if (how === 'signal') {
        await sleep(number % 40);
        stop.abort();
        await assert.rejects(within(text), { name: 'AbortError' });
      } else {
        assert.equal((await within(text)).done, true);
      }
    };
    const numbers = Array.from({ length: STREAMS }, (_, number) => number);
    await Promise.all(numbers.map(one));
    await until(() => fetch.streams.size === 0);
    // Nobody comes back, once what was under way has arrived, and nothing stays open.
    await until(async () => {
      const before = served;
      await sleep(100);
      return served === before && server.open === 0;
    });
  });
}
