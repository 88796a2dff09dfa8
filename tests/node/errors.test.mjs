// The one error: what it is for every wrong argument, and which codes there are.
import assert from 'node:assert/strict';
import { closeSSEStream, closeStandaloneSSEStream, drain, TailropeError } from 'tailrope';
import { resumableFetch, stream } from 'tailrope/client';
import { configure, createResumableMcpHandler, createSessionRouter, EventStore, openStore, setLog } from 'tailrope/mcp';
import { openSession, serve } from 'tailrope/testing';

import { TailropeError as Required } from '../../bindings-node/cjs/client.cjs';
import { buildServer } from '../servers/node/tools.mjs';
import { acting, classes, logged, newGate, open, packages, serveFor, webClasses } from '../servers/node/transports.mjs';
import { lastId, Peer, results } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const URL_OF_NOBODY = 'http://127.0.0.1:9/mcp';
const WRONG = {
  'a number that is negative': () => configure({ retryMs: -1 }),
  'a number that only the native half refuses': () => configure({ retryMs: 0.5 }),
  'a word that is none': () => configure({ onUnsupported: 'shrug' }),
  'a name that is none': () => new EventStore('memory:', { maxEvent: 1 }),
  'a store that is none': () => new EventStore(7),
  'a store that takes time to open': () => new EventStore('redis://localhost'),
  'the option of a store that is open': async () => configure({ store: await openStore('memory:'), maxBytes: 1 }),
  'a durability that is none': () => openStore('memory:', { durability: 'eternal' }),
  'a key that is none': () => openStore('memory:', { encryptionKeys: ['secret'] }),
  'a scope without a name': () => new EventStore().scoped(''),
  'a principal that is no function': () => configure({ principal: 'me' }),
  'a level that is none': () => setLog(() => {}, 'loud'),
  'a log that is no function': () => setLog('stderr'),
  'a log that is missing': () => setLog(),
  'a router without servers': () => createSessionRouter(),
  'an option that a handler has not': () => createResumableMcpHandler(() => {}, { legacy: 'stateless' }),
  'a fetch that is none': () => resumableFetch(7),
  'a number of tries that is none': () => resumableFetch(fetch, { maxAttempts: -1 }),
  'a token that is none': () => resumableFetch().resume('token', { url: URL_OF_NOBODY }).next(),
  'a growth that is out of range': () => stream(URL_OF_NOBODY, { message: {}, growth: 1_000 }),
  'a server that is none': () => serve(7),
};

const isRefused = (error) =>
  error instanceof TailropeError && error.name === 'TailropeError' && error.code === 'invalid_argument';

for (const [name, act] of Object.entries(WRONG)) {
  test(`${name} is an invalid argument`, ours, () => assert.rejects(async () => act(), isRefused));
}

const make = () => buildServer('v2');
const ofTransports = [
  ...Object.values(packages).flatMap((line) => [
    (given) => line.createSessionRouter(make, given),
    (given) => line.serveStoredSession({ headers: {} }, {}, given),
    (given) => line.fetchStoredSession(new Request(URL_OF_NOBODY), given),
  ]),
  ...[classes, webClasses].flatMap((of) => Object.values(of).map((Transport) => (given) => new Transport(given))),
  (given) => createResumableMcpHandler(make, given),
];
const TAKERS = [
  [ofTransports, 'enableJsonResponses', 'enableJsonResponse'],
  [ofTransports, 'server_name', 'serverName'],
  [[(given) => createResumableMcpHandler(make, given)], 'preferResumabel', 'preferResumable'],
  [[(given) => createResumableMcpHandler(make, given)], 'maxSubscription', 'maxSubscriptions'],
  [[(given) => createSessionRouter(make, given)], 'onadopted', 'onAdopted'],
  [[configure, (given) => new EventStore('memory:', given)], 'keepAlive', 'keepAliveMs'],
  [[(given) => openStore('memory:', given)], 'maxByte', 'maxBytes'],
  [[drain], 'within_ms', 'withinMs'],
  [[(given) => resumableFetch(fetch, given), (given) => stream(URL_OF_NOBODY, given)], 'maxAttempt', 'maxAttempts'],
  [[(given) => resumableFetch().resume('token', { url: URL_OF_NOBODY, ...given })], 'header', 'headers'],
  [[(given) => serve(() => {}, given), (given) => openSession(URL_OF_NOBODY, given)], 'waitms', 'waitMs'],
];

test('an option that there is not is refused everywhere, with the one that is meant', ours, async () => {
  for (const [takers, wrong, meant] of TAKERS) {
    for (const take of takers) {
      const isTold = ({ message }) =>
        message.includes(`option ${wrong} of `) && message.includes(`did you mean ${meant}`);
      const refused = (error) => isRefused(error) && isTold(error);
      await assert.rejects(async () => take({ [wrong]: 1 }), refused, `${wrong}: ${take}`);
      const unheard = (error) => isRefused(error) && /unknown option zzzz of /.test(error.message);
      await assert.rejects(async () => take({ zzzz: undefined }), unheard, `zzzz: ${take}`);
    }
  }
});

test('an option that belongs elsewhere is told where', ours, async () => {
  for (const take of ofTransports) {
    const elsewhere = {
      code: 'invalid_argument',
      message: /^maxSessions is an option of configure\(\): give it there/,
    };
    await assert.rejects(async () => take({ maxSessions: 1 }), elsewhere, String(take));
  }
  // A check of the host alone would leave half of the handler unguarded.
  const unguarded = { code: 'invalid_argument', message: /unknown option allowedHosts of createResumableMcpHandler/ };
  assert.throws(() => createResumableMcpHandler(make, { allowedHosts: ['me'] }), unguarded);
});

test('a duration that is no whole number is an invalid argument, and changes nothing', ours, async (t) => {
  const { port } = await serveFor(t, 'v2');
  const peer = await Peer.open(port);
  const name = newGate();
  const reply = await peer.call('act', { name });
  const { extra } = await acting(name);
  for (const wrong of [-1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, '5', null]) {
    for (const act of [
      () => closeSSEStream(extra, { retryMs: wrong }),
      () => closeSSEStream(extra, { holdMs: wrong }),
      () => closeStandaloneSSEStream(extra, { retryMs: wrong }),
      () => closeStandaloneSSEStream(extra, { holdMs: wrong }),
      () => createSessionRouter(() => {}, { retryInterval: wrong }),
      () => drain({ retryMs: wrong }),
      () => drain({ spreadMs: wrong }),
      () => drain({ withinMs: wrong }),
    ]) {
      await assert.rejects(async () => act(), isRefused, `${wrong}: ${act}`);
    }
  }
  open(name);
  assert.deepEqual(results(await reply.rest()), [name]);
});

test('a duration that is longer than can be told ends at the longest', ours, async (t) => {
  const { port } = await serveFor(t, 'v2');
  const peer = await Peer.open(port);
  const name = newGate();
  const reply = await peer.call('act', { name });
  const { extra } = await acting(name);
  closeSSEStream(extra, { retryMs: 2 ** 40 });
  const resumed = await peer.resume(lastId(await reply.rest()));
  assert.equal((await resumed.event()).retry, 2 ** 32 - 1);
  open(name);
  assert.deepEqual(results(await resumed.rest()), [name]);
});

test('what the engine says names options as they are given in Node', ours, async (t) => {
  const { port } = await serveFor(t, 'v2', {
    engine: { maxSessions: 1, maxRequestsPerSession: 1, maxEventBytes: 300 },
  });
  const peer = await Peer.open(port);
  const name = newGate();
  const reply = await peer.call('act', { name });
  const ctx = await acting(name);
  const large = { method: 'notifications/message', params: { level: 'info', data: 'x'.repeat(400) } };
  await assert.rejects(ctx.notify(large), /more than maxEventBytes = 300/);
  assert.equal((await peer.script('return x')).status, 429);
  await assert.rejects(Peer.open(port), /503/);
  for (const told of [/maxRequestsPerSession/, /maxSessions/]) {
    assert.ok(
      logged.some((line) => told.test(line)),
      `${told} is not in the log`,
    );
  }
  assert.deepEqual(
    logged.filter((line) => /max_(sessions|requests_per_session|event_bytes)/.test(line)),
    [],
  );
  open(name);
  await reply.rest();
});

test('a store that cannot be opened says so', ours, async () => {
  for (const address of ['sqlite:/nowhere/at/all/events.db', 'elephant:']) {
    const isTold = (error) => error instanceof TailropeError && error.code === 'store_not_opened';
    await assert.rejects(openStore(address), isTold);
    assert.throws(() => new EventStore(address), isTold);
  }
});

test('a server that is not there is a failure of the kit', ours, async () => {
  await assert.rejects(
    openSession(URL_OF_NOBODY),
    (error) => error instanceof Required && error.code === 'no_connection',
  );
});

test('errors are of the class in every copy of it, and of a class of the users own only when they are', () => {
  class Own extends TailropeError {}
  const error = new TailropeError('gone', 'gone');
  assert.ok(error instanceof Required && new Required('gone', 'gone') instanceof TailropeError);
  assert.ok(
    !(error instanceof Own) && new Own('gone', 'gone') instanceof Own && new Own('gone', 'gone') instanceof Required,
  );
  assert.ok(![new Error('gone'), undefined, null, 'gone'].some((other) => other instanceof TailropeError));
  assert.match(error.stack, /^TailropeError: gone/);
  assert.deepEqual(Object.keys(error), ['code']);
});
