// A thousand malformed requests on one keep-alive connection: 4xx with a JSON-RPC error, never a 500, never a hang.
//
// The generator is seeded, so a failure names a case that can be run again.
import assert from 'node:assert/strict';
import http from 'node:http';

import { ACCEPT, Late, Peer, refusal, within } from './kit/raw.mjs';
import { serve } from '../servers/node/transports.mjs';
import { isStock, onEachLine, test } from './kit/test.mjs';

const SEED = 20251125;
const CASES = 1_200;

const GOOD = { jsonrpc: '2.0', id: 1, method: 'ping' };
const VALUES = [null, true, false, 0, -1, 1.5, 1e300, '', 'x', '\u2028', [], [[]], '2.0'];
const BAD_IDS = [null, true, false, 1.5, -0.5, [], {}, [1], { id: 1 }];
const CURSOR_TEXT = 'abzAZ019-_.~!@#$%^&*()+={}[]|;:\'<>?/';
const BASE64 = 'ABCabc019-_';

/** Random numbers from a seed (mulberry32), and what is made of them. */
function chanceOf(seed) {
  const next = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (end, from = 0) => from + Math.floor(next() * (end - from));
  const of = (list) => list[below(list.length)];
  const text = (letters, length) => Array.from({ length }, () => of(letters)).join('');
  return { below, of, text };
}

function body(chance) {
  const good = JSON.stringify(GOOD);
  const kinds = [
    () => ['cut off', good.slice(0, chance.below(good.length, 1))],
    () => ['noise', Buffer.from([0xff, ...Array.from({ length: chance.below(60) }, () => chance.below(256))])],
    () => ['not a message', JSON.stringify(chance.of(VALUES))],
    () => ['forbidden id', JSON.stringify({ ...GOOD, id: chance.of(BAD_IDS) })],
    () => {
      const jsonrpc = chance.of([undefined, null, 2, '1.0', '2', '', [], true]);
      return ['wrong version of JSON-RPC', JSON.stringify({ ...GOOD, jsonrpc })];
    },
    () => ['method is no text', JSON.stringify({ ...GOOD, method: chance.of([null, 1, true, [], {}]) })],
    () => ['params are no structure', JSON.stringify({ ...GOOD, params: chance.of([1, 'x', true, 1.5]) })],
    () => ['deep nesting, cut off', chance.of(['[', '{"a":']).repeat(chance.of([300, 3_000, 30_000]))],
    () => ['neither request nor response', chance.of(['{}', '{"jsonrpc":"2.0"}', '{"id":1}'])],
    () => ['a batch with one of them', `[${good},${JSON.stringify({ ...GOOD, id: chance.of(BAD_IDS) })}]`],
  ];
  const [what, content] = chance.of(kinds)();
  return { what, body: content };
}

function cursor(chance) {
  const kinds = [
    () => chance.text(CURSOR_TEXT, chance.below(200, 1)),
    // The length of our form, with something that is not base64url in it.
    () => `a${chance.text(BASE64, 31)}${chance.of('!+/=~*')}`,
    () => chance.of('bcxyABZ019') + chance.text(BASE64, 32),
    () => `a${chance.text(BASE64, 32)}.${chance.of(['!', 'A', '=', '..', 'n', 'eDE'])}`,
    () => chance.of('az').repeat(chance.of([1, 2, 8, 31, 32, 121, 400, 4_000])),
  ];
  const headers = { 'last-event-id': chance.of(kinds)(), accept: 'text/event-stream' };
  return { what: 'cursor not of our form', method: 'GET', headers };
}

function head(chance) {
  const good = JSON.stringify(GOOD);
  const accepts = ['text/plain', 'text/event-stream', 'application/json', 'image/*', 'application/jsonp', ';', ','];
  const types = [undefined, 'text/plain', 'application/xml', 'json', 'application/jsonx', ''];
  const versions = ['1999-01-01', 'latest', '2025-11-25x', '2025-13-45', 'x'.repeat(300), '2025-11-25,2025-06-18'];
  const kinds = [
    () => ({ what: 'accept', body: good, headers: { accept: chance.of(accepts) } }),
    () => ({ what: 'content type', body: good, headers: { 'content-type': chance.of(types) } }),
    () => ({ what: 'version', body: good, headers: { 'mcp-protocol-version': chance.of(versions) } }),
    () => {
      const id = chance.text('0123456789abcdef~!', chance.of([1, 31, 32, 33, 500]));
      return { what: 'unknown session', body: good, headers: { 'mcp-session-id': id } };
    },
    () => {
      const method = chance.of(['POST', 'GET', 'DELETE']);
      return { what: 'no session', method, body: good, headers: { 'mcp-session-id': undefined } };
    },
    () => {
      const accept = chance.of(['application/json', 'text/html', '']);
      return { what: 'get without accept', method: 'GET', headers: { accept } };
    },
    () => {
      const method = chance.of(['PUT', 'PATCH', 'OPTIONS', 'HEAD', 'TRACE', 'BREW']);
      // The HTTP server itself answers what is no method.
      return { what: 'method', method, body: good, http: method === 'BREW' };
    },
    () => {
      const name = chance.of(['mcp-session-id', 'last-event-id', 'mcp-protocol-version']);
      const value = chance.of(['\xff\xfe', 'caf\u00e9', 'a\tb', '\xa0']);
      return { what: 'bytes in a header', method: 'GET', headers: { [name]: value, accept: 'text/event-stream' } };
    },
  ];
  return chance.of(kinds)();
}

function cases() {
  const chance = chanceOf(SEED);
  const sources = [body, cursor, head];
  return Array.from({ length: CASES }, (_, number) => sources[number % 3](chance));
}

/** One answer on a connection that is used again; nothing when the connection was lost. */
function ask(agent, port, { method = 'POST', body: content }, headers) {
  const answered = new Promise((resolve) => {
    const options = { agent, port, host: '127.0.0.1', path: '/mcp', method, headers };
    const request = http.request(options, (response) => {
      const { statusCode: status } = response;
      const type = response.headers['content-type'];
      if (status === 200 && type?.startsWith('text/event-stream')) {
        // Not refused: the caller will say so. The body may be endless.
        response.destroy();
        resolve({ status, type, text: '' });
        return;
      }
      let text = '';
      response.setEncoding('utf8').on('data', (chunk) => (text += chunk));
      response.on('end', () => resolve({ status, type, text }));
      response.on('error', () => resolve(undefined));
    });
    request.on('error', () => resolve(undefined));
    request.end(content);
  });
  return within(answered, isStock ? 3_000 : 15_000);
}

/** What is wrong with the answer, or nothing. */
function judge({ method, http: early }, answer) {
  if (answer === undefined) {
    return early ? undefined : 'connection lost';
  }
  const { status, type, text } = answer;
  if (status < 400 || status >= 500) {
    return `status ${status}`;
  }
  if (early || method === 'HEAD') {
    return undefined;
  }
  try {
    const { jsonrpc, error } = JSON.parse(text);
    assert.ok(type.startsWith('application/json') && jsonrpc === '2.0' && Number.isInteger(error.code));
    return undefined;
  } catch {
    return `${status} as ${type}: ${text.slice(0, 80)}`;
  }
}

onEachLine(serve, (line, server) => {
  test('malformed requests are refused', { timeout: 60_000 }, async (t) => {
    const { port } = server();
    const peer = await Peer.open(port);
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    t.after(() => agent.destroy());
    const wrong = [];
    for (const [number, wanted] of cases().entries()) {
      const headers = {
        accept: ACCEPT,
        'mcp-session-id': peer.sessionId,
        'mcp-protocol-version': peer.revision,
        ...(wanted.body !== undefined && {
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(wanted.body),
        }),
        ...wanted.headers,
      };
      const sent = Object.fromEntries(Object.entries(headers).filter(([, value]) => value !== undefined));
      const fault = await ask(agent, port, wanted, sent).then(
        (answer) => judge(wanted, answer),
        (error) => (error instanceof Late ? 'hangs' : error.message),
      );
      if (fault !== undefined) {
        const { what, method, headers: laid, body: content } = wanted;
        wrong.push(`#${number} ${what} ${method} ${JSON.stringify(laid)} ${String(content).slice(0, 80)}: ${fault}`);
      }
    }
    assert.equal(wrong.length, 0, `${wrong.length} of ${CASES}:\n${wrong.slice(0, 40).join('\n')}`);
    // The session they were thrown at works as before.
    assert.equal(await peer.ask('return fine'), 'fine');
  });

  test('batches are refused as the sdk does', async () => {
    // An empty one: these SDKs take the others.
    const peer = await Peer.open(server().port);
    const [status, code] = await refusal(await peer.post([]));
    assert.deepEqual([status, code], [400, -32700]);
    const reply = await peer.post([GOOD, { ...GOOD, id: 2 }]);
    assert.deepEqual((await reply.rest()).filter(({ isTerminal }) => isTerminal).length, 2);
  });

  test('body that never ends blocks nobody', async () => {
    const { port } = server();
    const peer = await Peer.open(port);
    const headers = { accept: ACCEPT, 'content-type': 'application/json', 'content-length': 1_000 };
    const options = { port, host: '127.0.0.1', path: '/mcp', method: 'POST', agent: false, headers };
    const half = http.request({ ...options, headers: { ...headers, 'mcp-session-id': peer.sessionId } });
    half.on('error', () => {});
    half.write('{');
    assert.equal(await peer.ask('return fine'), 'fine');
    half.destroy();
    assert.equal(await peer.ask('return still'), 'still');
  });
});
