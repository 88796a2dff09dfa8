// The official TypeScript clients, unmodified, with our line or without it.
const MODULES = {
  v1: () =>
    Promise.all([
      import('@modelcontextprotocol/sdk/client/index.js'),
      import('@modelcontextprotocol/sdk/client/streamableHttp.js'),
      import('@modelcontextprotocol/sdk/types.js'),
    ]),
  v2: () => Promise.all([import('@modelcontextprotocol/client')]),
};

const info = { name: 'client', version: '1' };

/** The one line: what the transport's `fetch` option gets. */
export async function resumable(options, inner = undefined) {
  const { resumableFetch } = await import('tailrope/client');
  return resumableFetch(inner, options);
}

/**
 * A client that has negotiated a revision. `ours` holds our options; undefined is the stock client. `onAsk` answers
 * a question's text.
 */
export async function connect(line, url, ours, { onLog, onAsk, onError }) {
  const modules = Object.assign({}, ...(await MODULES[line]()));
  const { Client, StreamableHTTPClientTransport } = modules;
  const client = new Client(info, { capabilities: { sampling: {} } });
  client.fallbackNotificationHandler = async ({ method, params }) => {
    if (method === 'notifications/message') {
      onLog(params.data);
    }
  };
  client.setRequestHandler(line === 'v1' ? modules.CreateMessageRequestSchema : 'sampling/createMessage', (request) => {
    const [{ content }] = request.params.messages;
    const text = onAsk((Array.isArray(content) ? content[0] : content).text);
    return { role: 'assistant', model: 'none', content: { type: 'text', text } };
  });
  client.onerror = onError;
  const options = ours === undefined ? {} : { fetch: await resumable(ours) };
  const transport = new StreamableHTTPClientTransport(new URL(url), options);
  await client.connect(transport);
  return {
    client,
    revision: transport.protocolVersion,
    callTool: (call, options) =>
      line === 'v1' ? client.callTool(call, undefined, options) : client.callTool(call, options),
    async close() {
      await transport.terminateSession().catch(onError);
      await client.close();
    },
  };
}
