// `resumableFetch` against a server that does what each test says. (W-043, W-063, W-066, W-069, F-70 to F-80)
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { gzipSync } from 'node:zlib';

import { resumableFetch } from 'tailrope/client';

import { sleep, until, within } from './kit/raw.mjs';
import { event, listenTo, note, post, primed, result, ScriptedServer } from './kit/scripted.mjs';
import { called, listening, parse, withoutSlack } from './kit/streams.mjs';
import { test } from './kit/test.mjs';

for (const how of ['end', 'break']) {
  test(`call whose connection breaks is answered: ${how}`, async (t) => {
    const resumes = [];
    const { server, fetch, exchange, response } = await called(t, { onResume: (resume) => resumes.push(resume) });
    assert.deepEqual([response.status, response.url, response.ok], [200, server.url, true]);
    assert.equal(response.headers.get('content-type'), 'text/event-stream');
    exchange.text(primed('ä', 5) + event('b', note(1)))[how]();
    const text = response.text();
    const second = await server.next();
    assert.deepEqual([second.method, second.lastEventId, second.headers.accept], ['GET', 'b', 'text/event-stream']);
    assert.equal(second.headers['content-type'], undefined);
    second.head()[how]();
    const third = await server.next();
    assert.equal(third.lastEventId, 'b');
    third.head().end(event('c', result(1)));
    assert.deepEqual(parse(await within(text)), [note(1), result(1)]);
    assert.equal(resumes.length, 2);
    assert.deepEqual(
      resumes.map(({ attempt, requests }) => [attempt, requests]),
      [
        [1, [1]],
        [2, [1]],
      ],
    );
    // The second connection brought nothing: the wait grows, from 50 ms at least, by an eighth or by half.
    assert.deepEqual(
      resumes.map(({ delayMs }) => delayMs),
      [5, how === 'end' ? 56 : 75],
    );
    await until(() => fetch.streams.size === 0);
  });
}

test('ids do not reach the sdk, and go back as they came', async (t) => {
  const { server, exchange, response } = await called(t);
  const text = response.text();
  exchange.text(primed('über,ключ')).end();
  const next = await server.next();
  assert.equal(next.lastEventId, 'über,ключ');
  next.head().end(event('z', result(1)));
  assert.doesNotMatch(await within(text), /^(id|retry)/m);
});

test('standalone stream comes back', async (t) => {
  const { server, stop, exchange, response } = await listening(t);
  const reader = response.body.getReader();
  exchange.text(primed('a')).end();
  const second = await server.next();
  assert.equal(second.lastEventId, 'a');
  second.head().text(event('b', note(1)));
  assert.deepEqual(parse(new TextDecoder().decode((await within(reader.read())).value)), [note(1)]);
  stop.abort();
  await assert.rejects(within(reader.read()), { name: 'AbortError' });
  await within(second.closed);
});

test('first get is tried again', async (t) => {
  const server = await ScriptedServer.open(t);
  const asked = withoutSlack()(server.url, listenTo({ authorization: 'Bearer a' }));
  (await server.next()).break();
  for (const status of [503, 408, 409, 425, 429]) {
    (await server.next()).json(status, { why: 'x'.repeat(60 << 10) });
  }
  const last = await server.next();
  assert.equal(last.headers.authorization, 'Bearer a');
  last.head();
  const response = await within(asked);
  assert.equal(response.status, 200);
  // What was refused was read, so its connection was used again.
  assert.ok(server.connections <= 2, `${server.connections} connections`);
  await response.body.cancel();
  await within(last.closed);
});

for (const status of [400, 401, 404, 405, 307]) {
  test(`refusal of a first get reaches the sdk: ${status}`, async (t) => {
    const server = await ScriptedServer.open(t);
    const asked = withoutSlack()(server.url, { ...listenTo(), redirect: 'manual' });
    (await server.next()).json(status, { status });
    const response = await within(asked);
    assert.deepEqual([response.status, await response.json()], [status, { status }]);
    assert.equal(server.waiting, 0);
  });
}

test('a first get that is refused for too long gets the last refusal', async (t) => {
  const server = await ScriptedServer.open(t);
  const asked = withoutSlack({ maxAttempts: 2 })(server.url, listenTo());
  (await server.next()).json(503, { try: 1 });
  (await server.next()).json(503, { try: 2 });
  const response = await within(asked);
  assert.deepEqual([response.status, await response.json()], [503, { try: 2 }]);
});

test('first get without a server is the networks error', async (t) => {
  const server = await ScriptedServer.open(t);
  await server.close();
  const asked = withoutSlack({ maxAttempts: 2 })(server.url, listenTo());
  await assert.rejects(within(asked), (error) => error instanceof TypeError && error.cause.code === 'ECONNREFUSED');
});

test('failed stream answers its requests', async (t) => {
  const { server, fetch, exchange, response } = await called(t, {}, undefined, 'x');
  exchange.text(primed('a')).end();
  (await server.next()).json(404, {});
  const [answer, ...more] = parse(await within(response.text()));
  assert.deepEqual(more, []);
  assert.deepEqual([answer.id, answer.error.code, answer.error.data], ['x', -32000, { tailrope: 'session_lost' }]);
  assert.deepEqual([fetch.streams.size, fetch.streams.export()], [0, []]);
});

test('failed standalone stream is an error of the body', async (t) => {
  const { server, exchange, response } = await listening(t);
  exchange.text(primed('a')).end();
  (await server.next()).json(404, {});
  const failed = { name: 'TailropeError', code: 'session_lost' };
  await assert.rejects(within(response.text()), failed);
});

for (const how of ['signal', 'cancel']) {
  test(`abort in a wait is at once: ${how}`, async (t) => {
    const { server, fetch, stop, exchange, response } = await called(t);
    const reader = response.body.getReader();
    const read = reader.read();
    exchange.text(primed('a', 60_000)).end();
    await until(() => fetch.streams.export().length === 1);
    await within(exchange.closed);
    if (how === 'signal') {
      stop.abort(new Error('enough'));
      await assert.rejects(within(read), /enough/);
    } else {
      await within(reader.cancel());
      assert.equal((await within(read)).done, true);
    }
    await until(() => fetch.streams.size === 0);
    assert.equal(server.waiting, 0);
  });
}

for (const where of ['read', 'connect', 'first']) {
  test(`abort lets go of the connection: ${where}`, async (t) => {
    const server = await ScriptedServer.open(t);
    const fetch = withoutSlack();
    const stop = new AbortController();
    const asked = fetch(server.url, { ...(where === 'first' ? listenTo() : post(1)), signal: stop.signal });
    let exchange = await server.next();
    const outcome = asked.then((response) => response.text());
    if (where !== 'first') {
      exchange.head().text(primed('a'));
    }
    if (where === 'connect') {
      exchange.end();
      exchange = await server.next();
    } else if (where === 'read') {
      await until(() => fetch.streams.export().length === 1);
    }
    stop.abort();
    await assert.rejects(within(outcome), { name: 'AbortError' });
    await within(exchange.closed);
    await until(() => fetch.streams.size === 0);
  });
}

for (const where of ['wait', 'read', 'unanswered']) {
  test(`cancelled request is not resumed: ${where}`, async (t) => {
    const server = await ScriptedServer.open(t);
    const fetch = withoutSlack();
    const asked = fetch(server.url, post(7, { 'mcp-session-id': 's' }));
    const exchange = await server.next();
    if (where !== 'unanswered') {
      exchange.head().text(primed('a', 60_000));
      await until(() => fetch.streams.export().length === 1);
    }
    if (where === 'wait') {
      exchange.end();
      await within(exchange.closed);
    }
    const params = { requestId: 7 };
    const body = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params });
    const cancel = async (session) => {
      const told = fetch(server.url, { method: 'POST', body, headers: { 'mcp-session-id': session } });
      (await server.next()).head(202, {}).end();
      assert.equal((await within(told)).status, 202);
    };
    // Another session's request has the same id.
    await cancel('t');
    if (where !== 'unanswered') {
      assert.equal(fetch.streams.size, 1);
    }
    await cancel('s');
    if (where === 'unanswered') {
      exchange.head();
    }
    assert.equal(await within((await within(asked)).text()), '');
    assert.equal(fetch.streams.size, 0);
  });
}

test('resumes carry the newest headers', async (t) => {
  const begun = {
    authorization: 'Bearer 1',
    'mcp-session-id': 's',
    'mcp-protocol-version': '2025-06-18',
    'x-own': 'o',
  };
  const { server, fetch, exchange } = await called(t, {}, begun);
  const passed = fetch(server.url, { method: 'POST', body: '{}', headers: { ...begun, authorization: 'Bearer 2' } });
  (await server.next()).head(202, {}).end();
  await within(passed);
  exchange.text(primed('a')).end();
  const { headers } = await server.next();
  assert.equal(headers.authorization, 'Bearer 2');
  assert.equal(headers['mcp-session-id'], 's');
  assert.equal(headers['mcp-protocol-version'], '2025-06-18');
  assert.equal(headers['x-own'], 'o');
});

test('session of an initialize is that of its answer', async (t) => {
  const server = await ScriptedServer.open(t);
  const fetch = withoutSlack();
  const asked = fetch(server.url, post(0));
  const first = await server.next();
  first.head(200, { 'content-type': 'text/event-stream', 'mcp-session-id': 'new' }).text(primed('a')).end();
  const response = await within(asked);
  const next = await server.next();
  assert.equal(next.headers['mcp-session-id'], 'new');
  next.head().end(event('b', result(0)));
  assert.deepEqual(parse(await within(response.text())), [result(0)]);
});

test('headers option is asked before each resume', async (t) => {
  let count = 0;
  const headers = async () => {
    count += 1;
    if (count === 2) {
      throw new Error('no token now');
    }
    return { authorization: `Bearer ${count}` };
  };
  const { server, exchange } = await called(t, { headers }, { authorization: 'Bearer 0' });
  assert.equal(exchange.headers.authorization, 'Bearer 0');
  exchange.text(primed('a')).end();
  const second = await server.next();
  assert.equal(second.headers.authorization, 'Bearer 1');
  second.head().text(primed('b')).end();
  // The second time failed, and was a try like any other.
  assert.equal((await server.next()).headers.authorization, 'Bearer 3');
});

test('two sessions share no headers', async (t) => {
  const { server, fetch, exchange } = await called(t, {}, { 'mcp-session-id': 's', authorization: 'Bearer s' });
  const passed = fetch(server.url, post(1, { 'mcp-session-id': 't', authorization: 'Bearer t' }));
  (await server.next()).json(200, result(1));
  await within(passed);
  exchange.text(primed('a')).end();
  const { headers } = await server.next();
  assert.deepEqual([headers['mcp-session-id'], headers.authorization], ['s', 'Bearer s']);
});

test('clients without a session share no headers', async (t) => {
  const begun = { authorization: 'Bearer a', 'mcp-protocol-version': '2025-11-25' };
  const { server, fetch, exchange } = await called(t, { headers: { 'x-more': 'm' } }, begun);
  const other = { authorization: 'Bearer b', 'mcp-protocol-version': '2025-06-18' };
  const passed = fetch(server.url, post(1, other));
  (await server.next()).json(200, result(1));
  await within(passed);
  exchange.text(primed('a')).end();
  const { headers } = await server.next();
  assert.deepEqual([headers.authorization, headers['mcp-protocol-version']], ['Bearer a', '2025-11-25']);
  assert.equal(headers['x-more'], 'm');
  await until(() => fetch.streams.export().length === 1);
  assert.equal(JSON.parse(fetch.streams.export()[0]).protocolVersion, '2025-11-25');
});

test('requests that are not taken leave no headers', async (t) => {
  const begun = { authorization: 'Bearer a', 'mcp-session-id': 's', 'mcp-protocol-version': '2025-11-25' };
  const { server, fetch, exchange } = await called(t, {}, begun);
  const other = { ...begun, authorization: 'Bearer b', 'mcp-protocol-version': '2026-07-28' };
  for (const init of [post(1, other), { method: 'DELETE', headers: { ...begun, authorization: 'Bearer c' } }]) {
    const passed = fetch(server.url, init);
    (await server.next()).json(200, result(1));
    await within(passed);
  }
  exchange.text(primed('a')).end();
  const { headers } = await server.next();
  assert.deepEqual([headers.authorization, headers['mcp-protocol-version']], ['Bearer a', '2025-11-25']);
});

test('redirects of resumes stay on the origin', async (t) => {
  const { server, exchange, response } = await called(t, {}, { authorization: 'Bearer a' });
  const other = await ScriptedServer.open(t);
  exchange.text(primed('a')).end();
  (await server.next()).head(307, { location: '/moved' }).end();
  const moved = await server.next();
  assert.deepEqual([moved.path, moved.lastEventId, moved.headers.authorization], ['/moved', 'a', 'Bearer a']);
  moved.head().text(primed('b')).end();
  const again = await server.next();
  assert.equal(again.path, '/mcp');
  again.head(302, { location: other.url }).end();
  const [answer] = parse(await within(response.text()));
  assert.equal(answer.error.data.tailrope, 'unexpected_answer');
  assert.equal(other.connections, 0);
});

for (const version of ['2026-07-28', '2027-01-01']) {
  test(`revision without resumption passes: ${version}`, async () => {
    for (const init of [post(1, { 'mcp-protocol-version': version }), listenTo({ 'mcp-protocol-version': version })]) {
      const answer = new Response(primed('a'), { headers: { 'content-type': 'text/event-stream' } });
      const seen = [];
      const fetch = resumableFetch(async (...given) => {
        seen.push(given);
        return answer;
      });
      assert.equal(await fetch('http://127.0.0.1/mcp', init), answer);
      assert.equal(seen[0][1], init);
    }
  });
}

test('other exchanges pass', async () => {
  const stream = { 'content-type': 'text/event-stream' };
  const json = { 'content-type': 'application/json' };
  const response = JSON.stringify(result(1));
  for (const [init, status, headers] of [
    [undefined, 200, json],
    [{ headers: { accept: 'application/json' } }, 200, json],
    [{ method: 'DELETE' }, 200, stream],
    [post(1), 200, json],
    [post(1), 202, {}],
    [post(1), 401, stream],
    [post(1), 500, {}],
    [{ ...post(1), body: response }, 200, stream],
    [{ ...post(1), body: 'no json' }, 200, stream],
    [{ method: 'POST', body: new URLSearchParams('a=b') }, 200, stream],
  ]) {
    const answer = new Response('{}', { status, headers });
    assert.equal(await resumableFetch(async () => answer)('http://127.0.0.1/mcp', init), answer);
  }
  const gone = new Error('gone');
  const failing = resumableFetch(() => Promise.reject(gone));
  await assert.rejects(failing('http://127.0.0.1/mcp', post(1)), gone);
});

test('everything passes when it is switched off', async (t) => {
  t.after(() => delete process.env.TAILROPE_DISABLE);
  process.env.TAILROPE_DISABLE = '1';
  const answer = new Response(primed('a'), { headers: { 'content-type': 'text/event-stream' } });
  assert.equal(await resumableFetch(async () => answer)('http://127.0.0.1/mcp', post(1)), answer);
});

test('requests may be of any form that fetch takes', async (t) => {
  const server = await ScriptedServer.open(t);
  const fetch = withoutSlack();
  const { body, ...init } = post(1);
  const bytes = new TextEncoder().encode(body);
  for (const [input, more] of [
    [new Request(server.url, { ...init, body })],
    [new URL(server.url), { ...init, body: bytes }],
    [server.url, { ...init, body: bytes.buffer }],
  ]) {
    const asked = fetch(input, more);
    const exchange = await server.next();
    assert.equal(exchange.body, body);
    exchange.head().text(primed('a')).end();
    (await server.next()).head().end(event('b', result(1)));
    assert.deepEqual(parse(await within((await within(asked)).text())), [result(1)]);
  }
});

test('gaps are told', async (t) => {
  const gaps = [];
  const { server, exchange } = await listening(t, { onGap: (gap) => gaps.push(gap) });
  exchange.text(`: gap 4 17\n\n${primed('a')}`).end();
  (await server.next()).json(400, {});
  assert.equal((await server.next()).lastEventId, undefined);
  assert.deepEqual(gaps, [
    { first: 4, count: 17 },
    { first: null, count: null },
  ]);
});

test('callback that throws harms no stream', async (t) => {
  const warning = once(process, 'warning');
  const fault = new Error('a fault of the callback');
  const onResume = () => {
    throw fault;
  };
  const { server, exchange, response } = await called(t, { onResume });
  exchange.text(primed('a')).end();
  (await server.next()).head().end(event('b', result(1)));
  assert.deepEqual(parse(await within(response.text())), [result(1)]);
  assert.deepEqual(await within(warning), [fault]);
});

test('schedule is the hosts', async (t) => {
  const scheduled = [];
  const cancelled = [];
  const schedule = (delayMs, wake) => {
    scheduled.push({ delayMs, wake });
    return () => cancelled.push(delayMs);
  };
  const { server, stop, exchange, response } = await called(t, { schedule });
  exchange.text(primed('a', 100)).end();
  const [{ delayMs, wake }] = await until(() => scheduled.length > 0 && scheduled);
  assert.ok(delayMs > 50 && delayMs <= 101, String(delayMs));
  // Too early: it is asked again for the rest.
  wake();
  await until(() => scheduled.length > 1);
  // Timers of ours may be early, too.
  while (server.waiting === 0) {
    const last = scheduled.at(-1);
    await sleep(last.delayMs + 1);
    last.wake();
    await sleep(20);
  }
  const count = scheduled.length;
  (await server.next()).head().text(primed('b', 60_000)).end();
  await until(() => scheduled.length > count);
  stop.abort();
  await assert.rejects(within(response.text()), { name: 'AbortError' });
  await until(() => cancelled.length === 1);
});

for (const what of ['call', 'standalone', 'first']) {
  test(`schedule that throws is a failure: ${what}`, async (t) => {
    const warning = once(process, 'warning');
    const fault = new Error('no timers here');
    const schedule = () => {
      throw fault;
    };
    const gaveUp = (error) => error.code === 'gave_up' && error.cause === fault;
    if (what === 'first') {
      const server = await ScriptedServer.open(t);
      const asked = withoutSlack({ schedule })(server.url, listenTo());
      (await server.next()).break();
      await assert.rejects(within(asked), fault);
    } else {
      const { server, fetch, exchange, response } = await { call: called, standalone: listening }[what](t, {
        schedule,
      });
      exchange.text(primed('a')).end();
      if (what === 'call') {
        const [answer, ...more] = parse(await within(response.text()));
        assert.deepEqual([answer.id, answer.error.code, answer.error.data], [1, -32000, { tailrope: 'gave_up' }]);
        assert.deepEqual(more, []);
      } else {
        await assert.rejects(within(response.text()), gaveUp);
      }
      assert.deepEqual([fetch.streams.size, fetch.streams.export()], [0, []]);
      await until(() => server.open === 0);
    }
    assert.deepEqual(await within(warning), [fault]);
  });
}

test('compressed stream is read', async (t) => {
  const server = await ScriptedServer.open(t);
  const asked = withoutSlack()(server.url, post(1));
  const headers = { 'content-type': 'text/event-stream', 'content-encoding': 'gzip' };
  (await server.next()).head(200, headers).end(gzipSync(event('a', note(1)) + event('b', result(1))));
  assert.deepEqual(parse(await within((await within(asked)).text())), [note(1), result(1)]);
});

test('connection that is silent is given up', async (t) => {
  const { server, exchange, response } = await called(t, { maxSilenceMs: 1_000 });
  exchange.text(primed('a'));
  const next = await server.next();
  await within(exchange.closed);
  next.head().end(event('b', result(1)));
  assert.deepEqual(parse(await within(response.text())), [result(1)]);
});

for (const how of ['fetch', 'headers']) {
  test(`connection that is never answered is given up: ${how}`, async (t) => {
    const options = { maxSilenceMs: 1_000, maxAttempts: 3 };
    let asked = 0;
    if (how === 'headers') {
      options.headers = () => {
        asked += 1;
        return new Promise(() => {});
      };
    }
    const { server, fetch, exchange, response } = await called(t, options);
    exchange.text(primed('a')).end();
    const [answer] = parse(await within(response.text()));
    assert.equal(answer.error.data.tailrope, 'gave_up');
    assert.equal(fetch.streams.size, 0);
    // Each was let go of.
    await until(() => server.open === 0);
    assert.equal(how === 'headers' ? asked : server.waiting, 3);
  });
}

test('first get that is never answered is tried again', async (t) => {
  const server = await ScriptedServer.open(t);
  const asked = withoutSlack({ maxSilenceMs: 1_000 })(server.url, listenTo());
  await within((await server.next()).closed);
  (await server.next()).head();
  const response = await within(asked);
  assert.equal(response.status, 200);
  await response.body.cancel();
});

test('options out of range are named', async () => {
  const invalid = { name: 'TailropeError', code: 'invalid_argument' };
  for (const [options, message] of [
    [{ growth: 0.5 }, /^growth /],
    [{ jitter: '1' }, /^jitter /],
    [{ maxDelayMs: null }, /^maxDelayMs /],
    [{ maxAttempts: -1 }, /^maxAttempts /],
    [{ maxEventBytes: 0 }, /^maxEventBytes /],
    [{ onGap: 1 }, /^onGap /],
    [{ retryMs: 1 }, /retryMs/],
  ]) {
    assert.throws(() => resumableFetch(undefined, options), { message, ...invalid });
  }
  assert.throws(() => resumableFetch({}), invalid);
  await assert.rejects(resumableFetch().resume('no token', { url: 'http://localhost/' }).next(), invalid);
  const unbounded = { giveUpAfterMs: null, maxAttempts: null, maxSilenceMs: null, growth: undefined };
  assert.equal(resumableFetch(undefined, unbounded).streams.size, 0);
});

test('a call that waits holds its process, a standalone stream does not', async (t) => {
  const server = await ScriptedServer.open(t);
  const run = (init) => {
    const source = `import { resumableFetch } from 'tailrope/client';
      const answer = await resumableFetch()(${JSON.stringify(server.url)}, ${JSON.stringify(init)});
      answer.text().then((text) => console.log(text.length > 0));`;
    const options = { cwd: new URL('.', import.meta.url), stdio: ['ignore', 'pipe', 'inherit'] };
    const child = spawn(process.execPath, ['--input-type=module', '-e', source], options);
    t.after(() => child.kill('SIGKILL'));
    const text = child.stdout.toArray().then((chunks) => Buffer.concat(chunks).toString().trim());
    return once(child, 'close').then(async ([code]) => [code, await text]);
  };
  const listens = run(listenTo());
  (await server.next()).head().text(primed('a', 600_000)).end();
  assert.deepEqual(await within(listens), [0, '']);
  const calls = run(post(1));
  (await server.next()).head().text(primed('a', 300)).end();
  (await server.next()).head().end(event('b', result(1)));
  assert.deepEqual(await within(calls), [0, 'true']);
});

test('retry after is seconds or a date', async (t) => {
  const delays = [];
  const schedule = (delayMs, wake) => {
    delays.push(delayMs);
    const timer = setTimeout(wake, delayMs > 1_000 ? 0 : delayMs);
    return () => clearTimeout(timer);
  };
  for (const [value, least, most, date] of [
    ['7', 6_900, 7_002],
    [new Date(Date.now() + 60_000).toUTCString(), 50_000, 60_002],
    // By the server's clock, whatever that says.
    ['Wed, 21 Oct 2015 07:28:20 GMT', 19_900, 20_002, 'Wed, 21 Oct 2015 07:28:00 GMT'],
    ['Wed, 21 Oct 2015 07:28:20 GMT', 0, 77, 'Wed, 21 Oct 2015 07:29:00 GMT'],
    [new Date(Date.now() + 60_000).toUTCString(), 50_000, 60_002, 'yesterday'],
    ['soon', 0, 77],
  ]) {
    const { server, stop, exchange, response } = await called(t, { schedule });
    exchange.text(primed('a')).end();
    const refused = (await server.next()).head(429, { 'retry-after': value, ...(date && { date }) });
    delays.length = 0;
    refused.end();
    const [delayMs] = await until(() => delays.length > 0 && delays);
    assert.ok(delayMs >= least && delayMs <= most, `${value}: ${delayMs}`);
    stop.abort();
    await assert.rejects(within(response.text()), { name: 'AbortError' });
  }
});
