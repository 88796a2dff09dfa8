// Compiled, not run: the CommonJS form has the same types.
import tailrope = require('tailrope');
import client = require('tailrope/client');
import mcp = require('tailrope/mcp');
import v1 = require('tailrope/mcp-v1');
import testing = require('tailrope/testing');

const transport = new mcp.NodeStreamableHTTPServerTransport({ sessionIdGenerator: () => 'one' });
const transportV1 = new v1.StreamableHTTPServerTransport({ sessionIdGenerator: () => 'one' });
const handler: mcp.ResumableMcpHandler = mcp.createResumableMcpHandler(() => {
  throw new Error('not called');
});
const counts: Record<string, number> = tailrope.stats();
const resumable: client.ResumableFetch = client.resumableFetch(fetch, { onGap: ({ count }) => console.log(count) });
testing.serve('server.mjs').then((server: testing.Server) => server.close());
console.log(transport, transportV1, handler, counts, resumable.streams.size);
