// Runs the vectors of tests/vectors/admission.json over HTTP, on our transport and on the SDK's own.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { describe, test } from 'node:test';

import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { SUPPORTED_PROTOCOL_VERSIONS } from '@modelcontextprotocol/server';

import { Peer, request } from './kit/raw.mjs';
import { classes, connectServer } from '../servers/node/transports.mjs';

const { vectors } = JSON.parse(readFileSync(new URL('../vectors/admission.json', import.meta.url)));
const stock = { v1: StreamableHTTPServerTransport, v2: NodeStreamableHTTPServerTransport };
const dialects = { v1: 'mcp-typescript-1', v2: 'mcp-typescript-2' };

const HEADERS = {
  accept: 'accept',
  content_type: 'content-type',
  protocol_version: 'mcp-protocol-version',
  session_id: 'mcp-session-id',
  last_event_id: 'last-event-id',
};
const GIVEN = new Set(['dialects', 'method', 'opened', 'json_response', 'body', ...Object.keys(HEADERS)]);

/** A server with one transport, whose session is named `current`. */
async function serveOne(t, line, Transport, { opened = true, json_response = false }) {
  const transport = new Transport({ sessionIdGenerator: () => 'current', enableJsonResponse: json_response });
  await connectServer(line, transport);
  const server = http.createServer((req, res) => transport.handleRequest(req, res));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    await transport.close();
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address();
  if (opened) {
    const peer = new Peer(port);
    const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'p', version: '1' } };
    await (await peer.post({ jsonrpc: '2.0', id: 'i', method: 'initialize', params })).body();
  }
  return port;
}

function check(reply, text, want) {
  if (want.operation !== undefined) {
    // What the engine makes of an operation is not admission's to say.
    assert.ok(reply.status < 300 || want.operation.resume !== undefined, `${reply.status} ${text}`);
    return;
  }
  const { error, id } = JSON.parse(text);
  const message = want.message.replace('2025-11-25, 2024-10-07', SUPPORTED_PROTOCOL_VERSIONS.join(', '));
  assert.deepEqual([reply.status, error.code, error.message, id], [want.status, want.code, message, null]);
  assert.equal(reply.headers.allow, want.allow);
}

test('every vector is run', () => {
  const names = vectors.map(({ name }) => name);
  assert.equal(new Set(names).size, names.length);
  for (const line of LINES) {
    assert.ok(vectors.filter(({ given }) => given.dialects.includes(dialects[line])).length >= 50);
  }
});

for (const line of LINES) {
  for (const [name, Transport] of [
    ['tailrope', classes[line]],
    ['stock', stock[line]],
  ]) {
    describe(`${line} ${name}`, () => {
      for (const vector of vectors.filter(({ given }) => given.dialects.includes(dialects[line]))) {
        const { given, want, differs_from_stock } = vector;
        test(vector.name, { skip: name === 'stock' && differs_from_stock }, async (t) => {
          assert.ok(Object.keys(given).every((key) => GIVEN.has(key)));
          const port = await serveOne(t, line, Transport, given);
          const headers = {};
          for (const [key, header] of Object.entries(HEADERS)) {
            if (given[key] !== undefined) {
              headers[header] = given[key];
            }
          }
          const reply = await request(port, given.method, headers, given.body);
          if (reply.status === 200 && reply.headers['content-type'] === 'text/event-stream') {
            check(reply, '', want);
            reply.drop();
          } else {
            check(reply, await reply.body(), want);
          }
        });
      }
    });
  }
}
