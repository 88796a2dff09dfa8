// The unmodified official clients behind one small face.

import { Client as ClientV2, StreamableHTTPClientTransport as TransportV2 } from '@modelcontextprotocol/client';
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as TransportV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

export const CLIENTS = ['client 1.32', 'client 2.4'];

/** How long a client waits for a call; what is to come of itself is waited for less. */
const PATIENCE_MS = 60_000;
const info = { name: 'client', version: '1' };
const options = { capabilities: { elicitation: {} } };
const answer = async ({ params }) => ({ action: 'accept', content: { name: `re: ${params.message}` } });

/**
 * Connects a client; `gets` counts its GET requests. It answers every question. `route` tells the port for a
 * method, where that is not `port`; `wrap` makes the `fetch` that the client gets of the one that counts.
 */
export async function connect(which, port, path = '/mcp', route = undefined, wrap = (fetch) => fetch) {
  const isV1 = which === 'client 1.32';
  const [Client, Transport] = isV1 ? [ClientV1, TransportV1] : [ClientV2, TransportV2];
  const client = new Client(info, options);
  client.setRequestHandler(isV1 ? ElicitRequestSchema : 'elicitation/create', answer);
  const face = { client, gets: 0, progress: [], logs: [] };
  const counting = async (url, init) => {
    face.gets += init?.method === 'GET' ? 1 : 0;
    const to = new URL(url);
    to.port = (await route?.(init?.method)) ?? to.port;
    return fetch(to, init);
  };
  client.fallbackNotificationHandler = async ({ method, params }) => {
    if (method === 'notifications/message') {
      face.logs.push(params.data);
    }
  };
  const transport = new Transport(new URL(`http://127.0.0.1:${port}${path}`), { fetch: wrap(counting) });
  await client.connect(transport);
  face.revision = transport.protocolVersion;
  face.script = async (...steps) => {
    const options = { onprogress: ({ progress }) => face.progress.push(progress), timeout: PATIENCE_MS };
    const call = { name: 'script', arguments: { steps } };
    const result = await (isV1 ? client.callTool(call, undefined, options) : client.callTool(call, options));
    if (result.isError) {
      throw new Error(result.content[0].text);
    }
    return result.content[0].text;
  };
  face.close = () => client.close();
  return face;
}
