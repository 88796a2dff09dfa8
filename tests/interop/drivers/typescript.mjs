// An unmodified official TypeScript client, driven by a test: node typescript.mjs LINE URL [--line], LINE being v1 or
// v2.
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
    ]),
  v2: () => Promise.all([import('@modelcontextprotocol/client')]),
};

// A test waits for a call as long as it likes.
const LONG_MS = 600_000;

const show = (line) => console.log(JSON.stringify(line));

const [line, url, ours] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = Object.assign({}, ...(await MODULES[line]()));

const client = new Client({ name: 'interop', version: '1' });
client.fallbackNotificationHandler = async ({ method, params }) => {
  if (method === 'notifications/message') {
    show({ log: params.data });
  }
};
const transport = new StreamableHTTPClientTransport(new URL(url), ours === '--line' ? { fetch: resumableFetch() } : {});
await client.connect(transport);
show({ connected: transport.protocolVersion });

function send(order) {
  const options = { timeout: LONG_MS };
  if (order.method !== undefined) {
    return client.request({ method: order.method }, z.object({}).loose(), options);
  }
  const call = { name: 'script', arguments: { steps: order.steps } };
  options.onprogress = ({ progress }) => show({ call: order.call, progress });
  return line === 'v1' ? client.callTool(call, undefined, options) : client.callTool(call, options);
}

async function ask(order) {
  try {
    const result = await send(order);
    show({ call: order.call, [result.isError ? 'error' : 'result']: result.content?.[0].text });
  } catch (error) {
    show({ call: order.call, error: error.message });
  }
}

for await (const text of createInterface(process.stdin)) {
  const order = JSON.parse(text);
  if (order.call === undefined) {
    break;
  }
  ask(order);
}
await client.close();
show({ closed: true });
process.exit();
