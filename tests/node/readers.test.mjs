// What the core takes a body for, and what the SDK behind it takes it for. Where the core takes one, the SDK takes it for the
// same messages, or refuses it: otherwise calls would hang, and cancellations would be of others (I7, I13).
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import {
  CancelledNotificationSchema,
  JSONRPCMessageSchema,
  ProgressTokenSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { McpServer, parseJSONRPCMessage } from '@modelcontextprotocol/server';
import { bodyOfChunks } from '../../bindings-node/lib/server/body.mjs';
import { createResumableMcpHandler } from '../../bindings-node/lib/server/mcp.mjs';
import { ours, test } from './kit/test.mjs';

const { inspectBody } = createRequire(import.meta.url)('../../bindings-node/tailrope.node');
const { vectors } = JSON.parse(readFileSync(new URL('../vectors/readers.json', import.meta.url), 'utf8'));
const LINES = [(value) => JSONRPCMessageSchema.parse(value), parseJSONRPCMessage];

const bytesOf = ({ body, body_hex }) => (body === undefined ? Buffer.from(body_hex, 'hex') : Buffer.from(body));

/** The messages that the core reads; nothing where it refuses the body. */
function oursOf(body) {
  const read = JSON.parse(inspectBody(1, body));
  return Array.isArray(read) ? read : undefined;
}

/** A name as JSON text. JavaScript knows no minus zero in JSON. */
const named = (name) => (name === undefined ? null : JSON.stringify(name));

/** What an SDK line reads of it; nothing where it refuses it. */
function theirsOf(body, parse) {
  let messages;
  try {
    const value = JSON.parse(String(body));
    messages = (Array.isArray(value) ? value : [value]).map(parse);
  } catch {
    return undefined;
  }
  return messages.map(({ method, id, params }) => {
    const isRequest = method !== undefined && id !== undefined;
    const cancelled = CancelledNotificationSchema.safeParse({ method, params });
    const token = ProgressTokenSchema.safeParse(params?._meta?.progressToken);
    return {
      kind: method === undefined ? 'answer' : isRequest ? 'request' : 'notification',
      method: method ?? null,
      id: named(id),
      cancelled: named(isRequest ? undefined : cancelled.data?.params.requestId),
      token: named(isRequest ? token.data : undefined),
    };
  });
}

/** Whether the core takes a body, and an SDK line too. */
function check(body) {
  const read = oursOf(body);
  const answers = read === undefined ? [] : LINES.map((parse) => theirsOf(body, parse)).filter(Boolean);
  for (const answer of answers) {
    // A cancellation that the SDK does not take cancels nothing there.
    const cancels = answer.map(({ cancelled }) => cancelled);
    const wanted = read.map((message, at) => (cancels[at] === null ? { ...message, cancelled: null } : message));
    const plain = (messages) =>
      messages.map(({ kind, method, ...names }) => [
        kind,
        method,
        ...['id', 'cancelled', 'token'].map((name) => JSON.parse(names[name])),
      ]);
    assert.deepEqual(plain(answer), plain(wanted), String(body));
  }
  return answers.length > 0;
}

test('I13: a body of the vectors is read alike', ours, () => {
  for (const vector of vectors) {
    const body = bytesOf(vector);
    const isRefused = vector.want === 'refused' || vector.refused_by?.includes('typescript') === true;
    assert.equal(oursOf(bodyOfChunks([body])) === undefined, isRefused, vector.name);
    assert.deepEqual(oursOf(bodyOfChunks([body])), oursOf(body), vector.name);
    check(body);
  }
});

test('I13: bodies of any form are read alike', ours, () => {
  let state = Number(process.env.TAILROPE_SEED ?? 1);
  const random = (bound) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * bound);
  };
  const pick = (list) => list[random(list.length)];
  const bodies = vectors
    .map(bytesOf)
    .filter((body) => oursOf(body) !== undefined)
    .map(String);
  const values = '1 "1" 1.0 1e0 -0 0 null true [] {} "" 9007199254740993 9007199254740991 "2.0" "ping"'.split(' ');
  const names = 'jsonrpc id method params result error requestId _meta progressToken __proto__ x'.split(' ');
  const tries = 20_000 * Number(process.env.TAILROPE_DEPTH ?? 1);
  let both = 0;
  for (let tried = 0; tried < tries; tried += 1) {
    let body = pick(bodies);
    for (let changes = 1 + random(3); changes > 0; changes -= 1) {
      const places = [...body.matchAll(/[{},:]/g)].map(({ index }) => index);
      const at = places.length === 0 ? 0 : pick(places);
      const member = `"${pick(names)}":${pick(values)}`;
      body = [
        () => `${body.slice(0, at)},${member}${body.slice(at)}`,
        () => `${body.slice(0, at + 1)}${member},${body.slice(at + 1)}`,
        () => body.slice(0, at) + body.slice(at).replace(/:[^,{}]+/, `:${pick(values)}`),
        () => body.slice(0, at) + body.slice(at).replace(/"[^"]+":[^,{}]+,?/, ''),
      ][random(4)]();
    }
    both += check(body);
  }
  assert.ok(both > tries / 50, 'they are not all refused');
});

const BIG = '9007199254740993';

/** The answer of `createResumableMcpHandler` to a body, which it reads itself or is given as a parser has made it. */
async function answered(body, { isParsed, ...options }) {
  const handler = createResumableMcpHandler(() => new McpServer({ name: 's', version: '1' }), options);
  const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
  const request = new Request('http://localhost/mcp', { method: 'POST', headers, body });
  const response = await handler.fetch(request, isParsed ? { parsedBody: JSON.parse(body) } : {});
  await handler.close();
  return { status: response.status, text: await response.text() };
}

test('I7: a handler answers no request under the id of another one', ours, async () => {
  for (const preferResumable of [false, true]) {
    for (const isParsed of [false, true]) {
      const body = `{"jsonrpc":"2.0","id":${BIG},"method":"tools/list"}`;
      const { status, text } = await answered(body, { isParsed, preferResumable });
      assert.equal(status, 400);
      assert.match(text, isParsed ? /"id":null/ : new RegExp(`"id":${BIG}\\b`));
    }
  }
});

test('I11: a body that nests too deep is refused', ours, async () => {
  const nested = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
  for (const method of ['tools/list', 'initialize']) {
    for (const isParsed of [false, true]) {
      const body = `{"jsonrpc":"2.0","id":1,"method":"${method}","params":{"x":${nested}}}`;
      assert.equal((await answered(body, { isParsed })).status, 400, `${method} ${isParsed}`);
    }
  }
});
