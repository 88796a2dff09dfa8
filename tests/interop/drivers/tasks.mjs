// The official client of the tasks extension on the TypeScript SDK's, driven by a test: node tasks.mjs [--line].
//
// Orders and what it prints: ../driver.py, with `tool` and `arguments`. The requests that the extension's client sends go
// through the host's `fetch`, as its documentation has it: here the global one, or Tailrope's.
import { createInterface } from 'node:readline';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';
import { resumableFetch } from 'tailrope/client';

const EXTENSION = 'io.modelcontextprotocol/tasks';
const REVISION = '2026-07-28';
const clientInfo = { name: 'interop', version: '1' };
const clientCapabilities = { elicitation: { form: {} }, extensions: { [EXTENSION]: {} } };

const show = (line) => console.log(JSON.stringify(line));
const send = process.argv[2] === '--line' ? resumableFetch(fetch, { initialDelayMs: 20 }) : fetch;
const orders = createInterface(process.stdin)[Symbol.asyncIterator]();

async function nextOrder() {
  const { value, done } = await orders.next();
  return done ? undefined : JSON.parse(value);
}

let ids = 0;

/** Sends one request and gives its answer, which may be the last event of a stream. */
async function dispatch(url, { method, params }, { signal } = {}) {
  const response = await send(url, {
    method: 'POST',
    signal,
    headers: {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'mcp-protocol-version': REVISION,
      'mcp-method': method,
      'mcp-name': params.name ?? params.taskId,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: `ext-${++ids}`, method, params }),
  });
  const body = await response.text();
  const type = response.headers.get('content-type') ?? 'no type';
  if (type.startsWith('text/event-stream')) {
    const events = body.split('\n').filter((line) => line.startsWith('data: {'));
    return JSON.parse(events.at(-1).slice('data: '.length));
  }
  if (!type.startsWith('application/json')) {
    throw new Error(`${response.status} ${type}: ${body}`);
  }
  return JSON.parse(body);
}

async function connect(url) {
  const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { fetch: send }));
  const session = createTaskSessionFromClient(client, {
    endpointId: url,
    rawDispatch: (request, options) => dispatch(url, request, options),
    v2RequestFraming: { protocolVersion: REVISION, clientInfo, clientCapabilities },
    onInputRequest: async ({ params: { message } }) => {
      show({ asked: message });
      return { action: 'accept', content: { name: `re: ${message}` } };
    },
  });
  show({ connected: client.getNegotiatedProtocolVersion() });
  return { client, session };
}

async function ask({ session }, order) {
  try {
    const execution = await session.callTool(order.tool, order.arguments);
    const onEvent = ({ task }) => task?.statusMessage && show({ said: task.statusMessage });
    const { outcome } = await execution.settle({ onEvent });
    const result = resultFromTaskOutcome(outcome);
    show({ call: order.call, [result.isError ? 'error' : 'result']: result.content?.[0].text });
  } catch (error) {
    show({ call: order.call, error: `${error.message} ${error.cause?.message ?? ''}` });
  }
}

/** One client, until an order closes it. */
async function drive(url) {
  const connected = await connect(url);
  let order;
  while ((order = await nextOrder())?.call !== undefined) {
    void ask(connected, order);
  }
  await connected.session.close();
  await connected.client.close();
  show({ closed: true });
}

let order;
while ((order = await nextOrder()) !== undefined) {
  await drive(order.connect);
}
process.exit();
