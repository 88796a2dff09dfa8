// The unmodified official clients behind one small face.
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as TransportV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client as ClientV2, StreamableHTTPClientTransport as TransportV2 } from '@modelcontextprotocol/client';

export const CLIENTS = ['client 1.32', 'client 2.4'];

const info = { name: 'client', version: '1' };

/** Connects a client; `gets` counts its GET requests. */
export async function connect(which, port, path = '/mcp') {
  const [Client, Transport] = which === 'client 1.32' ? [ClientV1, TransportV1] : [ClientV2, TransportV2];
  const client = new Client(info);
  const face = { client, gets: 0, progress: [], logs: [] };
  const counting = (url, init) => {
    face.gets += init?.method === 'GET' ? 1 : 0;
    return fetch(url, init);
  };
  client.fallbackNotificationHandler = async ({ method, params }) => {
    if (method === 'notifications/message') {
      face.logs.push(params.data);
    }
  };
  await client.connect(new Transport(new URL(`http://127.0.0.1:${port}${path}`), { fetch: counting }));
  face.script = async (...steps) => {
    const options = { onprogress: ({ progress }) => face.progress.push(progress), timeout: 10_000 };
    const call = { name: 'script', arguments: { steps } };
    const result = await (which === 'client 1.32'
      ? client.callTool(call, undefined, options)
      : client.callTool(call, options));
    return result.content[0].text;
  };
  face.close = () => client.close();
  return face;
}
