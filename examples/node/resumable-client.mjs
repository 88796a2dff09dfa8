// A client of the TypeScript SDK 2.x whose calls survive their connections: the server may close them, a proxy may cut
// them, and each call still ends with its result or with an error. Start a server, and then
// `node resumable-client.mjs http://127.0.0.1:3000/mcp`.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { resumableFetch } from 'tailrope/client';

const url = new URL(process.argv[2] ?? 'http://127.0.0.1:3000/mcp');
const fetch = resumableFetch(globalThis.fetch, {
  onResume({ lastEventId, attempt, delayMs }) {
    console.log(`resume after ${lastEventId}, try ${attempt}, waited ${Math.round(delayMs)} ms`);
  },
  onGap({ count }) {
    console.log(`lost ${count ?? 'some'} events`);
  },
});

const client = new Client({ name: 'resumable-client', version: '1.0.0' });
// The one line: the transport gets another `fetch`.
await client.connect(new StreamableHTTPClientTransport(url, { fetch }));

const onprogress = ({ progress, total }) => console.log(`page ${progress} of ${total}`);
const call = { name: 'build_report', arguments: { pages: 20 } };
const { content } = await client.callTool(call, { onprogress, resetTimeoutOnProgress: true });
console.log(content[0].text);
await client.close();
