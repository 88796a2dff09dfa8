// The demo's Node client: the TypeScript SDK's, unmodified, with a progress callback. It reads the URL from its first
// line of input and reports what its application sees, one line of JSON per fact.
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

// The call fails when nothing has come for so long.
const SILENCE_MS = 10_000;

function report(what, fields = {}) {
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()) / 1e9, what, ...fields }));
}

const input = createInterface(process.stdin);
const [url] = await once(input, 'line');
input.close();

const client = new Client({ name: 'demo', version: '1.0.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
try {
  const onprogress = ({ progress }) => report('progress', { number: progress });
  const patience = { timeout: SILENCE_MS, resetTimeoutOnProgress: true };
  const answer = await client.callTool({ name: 'index_files' }, { onprogress, ...patience });
  report('result', { text: answer.content[0].text });
} catch (error) {
  report('failure', { text: error.message });
}
await client.close();
