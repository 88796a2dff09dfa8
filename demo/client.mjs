// The demo's Node client: the TypeScript SDK's, unmodified, with a progress callback, and with Tailrope's line or without
// it. It reads the URL from its first line of input and reports what its application sees, one line of JSON per fact.
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

// The call fails when nothing has come for so long.
const SILENCE_S = 10;

const { values: options } = parseArgs({
  options: {
    transport: { type: 'string' }, // as in client.py, where it makes a difference
    line: { type: 'boolean', default: false },
    'silence-s': { type: 'string', default: String(SILENCE_S) },
  },
});

function report(what, fields = {}) {
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()) / 1e9, what, ...fields }));
}

const input = createInterface(process.stdin);
const [url] = await once(input, 'line');
input.close();

const client = new Client({ name: 'demo', version: '1.0.0' });
const line = {};
if (options.line) {
  const { resumableFetch } = await import('tailrope/client');
  line.fetch = resumableFetch(); // the one line
}
await client.connect(new StreamableHTTPClientTransport(new URL(url), line));
try {
  const onprogress = ({ progress }) => report('progress', { number: progress });
  const patience = { timeout: Number(options['silence-s']) * 1_000, resetTimeoutOnProgress: true };
  const answer = await client.callTool({ name: 'index_files' }, { onprogress, ...patience });
  report('result', { text: answer.content[0].text });
} catch (error) {
  report('failure', { text: error.message });
}
await client.close();
