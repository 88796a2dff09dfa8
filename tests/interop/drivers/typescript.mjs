// An unmodified official TypeScript client, driven by a test: node typescript.mjs LINE [--line], LINE being v1 or v2.
//
// Orders come on stdin and what the client shows its user goes to stdout, one JSON object in a line; ../driver.py says
// which there are. Nothing is configured but the address, and with `--line` the `fetch`.
import { createInterface } from 'node:readline';

import { resumableFetch } from 'tailrope/client';
import * as z from 'zod';

const MODULES = {
  v1: () =>
    Promise.all([
      import('@modelcontextprotocol/sdk/client/index.js'),
      import('@modelcontextprotocol/sdk/client/streamableHttp.js'),
      import('@modelcontextprotocol/sdk/types.js'),
    ]),
  v2: () => Promise.all([import('@modelcontextprotocol/client')]),
};

// A test waits for a call as long as it likes.
const LONG_MS = 600_000;

const show = (line) => console.log(JSON.stringify(line));

const [line, ours] = process.argv.slice(2);
const modules = Object.assign({}, ...(await MODULES[line]()));
const orders = createInterface(process.stdin)[Symbol.asyncIterator]();

async function nextOrder() {
  const { value, done } = await orders.next();
  return done ? undefined : JSON.parse(value);
}

async function connect(url) {
  const { Client, StreamableHTTPClientTransport, ElicitRequestSchema } = modules;
  const client = new Client({ name: 'interop', version: '1' }, { capabilities: { elicitation: {} } });
  client.fallbackNotificationHandler = async ({ method, params }) => {
    if (method === 'notifications/message') {
      show({ log: params.data });
    }
  };
  client.setRequestHandler(line === 'v1' ? ElicitRequestSchema : 'elicitation/create', ({ params }) => {
    show({ asked: params.message });
    return { action: 'accept', content: { name: `re: ${params.message}` } };
  });
  const options = ours === '--line' ? { fetch: resumableFetch() } : {};
  const transport = new StreamableHTTPClientTransport(new URL(url), options);
  await client.connect(transport);
  show({ connected: transport.protocolVersion });
  return client;
}

function send(client, order) {
  const options = { timeout: LONG_MS };
  if (order.method !== undefined) {
    return client.request({ method: order.method }, z.object({}).loose(), options);
  }
  const call = { name: 'script', arguments: { steps: order.steps } };
  options.onprogress = ({ progress }) => show({ call: order.call, progress });
  return line === 'v1' ? client.callTool(call, undefined, options) : client.callTool(call, options);
}

async function ask(client, order) {
  try {
    const result = await send(client, order);
    show({ call: order.call, [result.isError ? 'error' : 'result']: result.content?.[0].text });
  } catch (error) {
    show({ call: order.call, error: error.message });
  }
}

/** One client, until an order closes it. */
async function drive(url) {
  const client = await connect(url);
  let order;
  while ((order = await nextOrder())?.call !== undefined) {
    void ask(client, order);
  }
  await client.close();
  show({ closed: true });
}

let order;
while ((order = await nextOrder()) !== undefined) {
  await drive(order.connect);
}
process.exit();
