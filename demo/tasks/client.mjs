// A client of 2026-07-28 that takes tasks: the TypeScript SDK's with @modelcontextprotocol/ext-tasks, both unmodified. It
// reads the URL and then its calls from its input, and reports what its application sees, one line of JSON each.
import { createInterface } from 'node:readline';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';

const REVISION = '2026-07-28';
const clientInfo = { name: 'demo', version: '1.0.0' };
const capabilities = { extensions: { 'io.modelcontextprotocol/tasks': {} } };

function report(what, fields = {}) {
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()) / 1e9, what, ...fields }));
}

let lastId = 0;

/** The package leaves sending to its host, and so the ids. */
const dispatchTo = (url) => async (request) => {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'mcp-protocol-version': REVISION,
      'mcp-method': request.method,
      'mcp-name': request.params.name ?? request.params.taskId,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: ++lastId, ...request }),
  });
  return response.json();
};

const lines = createInterface(process.stdin)[Symbol.asyncIterator]();
const url = (await lines.next()).value;
const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: 'auto' } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const session = createTaskSessionFromClient(client, {
  endpointId: url,
  rawDispatch: dispatchTo(url),
  v2RequestFraming: { protocolVersion: REVISION, clientInfo, clientCapabilities: capabilities },
});
report('open', { revision: client.getNegotiatedProtocolVersion() });
for await (const line of lines) {
  const { tool, arguments: args } = JSON.parse(line);
  report('call', { call: args.call, tool });
  try {
    const execution = await session.callTool(tool, args);
    const { outcome } = await execution.settle();
    const { content } = resultFromTaskOutcome(outcome);
    report('result', { call: args.call, text: content[0].text });
  } catch (error) {
    report('failure', { call: args.call, text: error.message });
  }
}
await session.close();
await client.close();
