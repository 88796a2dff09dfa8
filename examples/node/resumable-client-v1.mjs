// A client of the TypeScript SDK 1.x whose calls survive their connections, and the end of its own process. Start a
// server, and then `node resumable-client-v1.mjs http://127.0.0.1:3000/mcp`.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { resumableFetch, stream } from 'tailrope/client';

const url = new URL(process.argv[2] ?? 'http://127.0.0.1:3000/mcp');
const onResume = ({ lastEventId }) => console.log(`resume after ${lastEventId}`);
const fetch = resumableFetch(globalThis.fetch, { onResume });

const client = new Client({ name: 'resumable-client', version: '1.0.0' });
// The one line: the transport gets another `fetch`.
await client.connect(new StreamableHTTPClientTransport(url, { fetch }));

const call = { name: 'build_report', arguments: { pages: 20 } };
let tokens = [];
const onprogress = ({ progress, total }) => {
  console.log(`page ${progress} of ${total}`);
  if (progress === total / 4) {
    // What a program keeps that may be stopped at any time: text of one line for each open stream.
    tokens = fetch.streams.export().filter((token) => !token.includes('"requests":[]'));
    void client.close();
  }
};
await client.callTool(call, undefined, { onprogress }).catch((error) => console.log(`stopped: ${error.message}`));

// The same program, started again: it goes on where it was. The newest page may come again.
for (const token of tokens) {
  for await (const { params, result } of stream(url, { token, onResume })) {
    console.log(result === undefined ? `page ${params.progress} of ${params.total}` : result.content[0].text);
  }
}
