// The Node server that the conformance suite asks about tasks: node tasks.mjs [--front]. As server.mjs, with the tools that the
// scenarios of tasks need, each as a user would write it.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { inputRequired, ProtocolError, Server } from '@modelcontextprotocol/server';

// By its path: this folder has a package.json of its own, in which the name `tailrope` means nothing.
import { configure, createResumableMcpHandler, serve } from '../../bindings-node/lib/server/mcp.mjs';

const FAILS_AFTER_MS = 1_000;
const WORKS_MS = 1_000;
const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
const question = (message) => inputRequired.elicit({ message, requestedSchema });
const text = (said) => ({ content: [{ type: 'text', text: said }] });

const TOOLS = {
  greet: ({ name }) => text(`Hello, ${name}!`),
  async slow_compute({ seconds, label }, { _meta, notify, signal }) {
    const { progressToken } = _meta ?? {};
    if (progressToken !== undefined) {
      await notify({ method: 'notifications/progress', params: { progressToken, progress: 0, message: label } });
    }
    await sleep(seconds * 1_000, undefined, { signal });
    return text(`computed ${label}`);
  },
  async failing_job() {
    await sleep(FAILS_AFTER_MS);
    return { ...text('the job has failed'), isError: true };
  },
  // An `McpServer` makes an error result of whatever a tool throws.
  async protocol_error_job() {
    await sleep(FAILS_AFTER_MS);
    throw new ProtocolError(-32603, 'the job broke the protocol');
  },
  /** Asks in a round of its own. */
  confirm_delete: ({ filename }, { inputResponses }) =>
    inputResponses === undefined
      ? inputRequired({ inputRequests: { confirm: question(`Delete ${filename}?`) } })
      : text(`${filename}: ${inputResponses.confirm.action}`),
  /** Asks twice at once, as handlers of the older revisions do. */
  async multi_input(_, { elicitInput }) {
    const ask = (message) => elicitInput({ message, requestedSchema });
    const answers = await Promise.all([ask('Your name?'), ask('Another name?')]);
    return text(answers.map(({ action }) => action).join(', '));
  },
  /** Asks before it becomes a task, and works after that. */
  async test_tool_with_task(_, { inputResponses }) {
    if (inputResponses === undefined) {
      return inputRequired({ inputRequests: { user_name: question('Your name?') } });
    }
    await sleep(WORKS_MS);
    return text(`Hello, ${JSON.stringify(inputResponses.user_name.content)}`);
  },
};

function makeServer() {
  const server = new Server({ name: 'conformance', version: '1' }, { capabilities: { tools: {} } });
  const tools = Object.keys(TOOLS).map((name) => ({ name, description: name, inputSchema: { type: 'object' } }));
  server.setRequestHandler('tools/list', () => ({ tools }));
  server.setRequestHandler('tools/call', ({ params }, { mcpReq }) => {
    const tool = TOOLS[params.name];
    if (tool === undefined) {
      throw new ProtocolError(-32602, `no ${params.name}`);
    }
    return tool(params.arguments ?? {}, mcpReq);
  });
  return server;
}

// The suite wants tasks of these, also where the answer comes at once; and some tools for clients with tasks only.
const always = { taskAfterMs: 0 };
configure({
  taskAfterMs: 300,
  pace: {
    slow_compute: always,
    protocol_error_job: always,
    confirm_delete: always,
    multi_input: always,
    failing_job: { taskAfterMs: 0, requiresTask: true },
    test_tool_with_task: { requiresTask: true },
  },
});
// The suite's client without tasks is to be answered, not steered.
const options = { preferResumable: false };

/** Listens, and gives the port. */
async function listen() {
  const listener = http.createServer(createResumableMcpHandler(makeServer, options).node);
  await new Promise((resolve) => listener.listen(0, '127.0.0.1', resolve));
  return listener.address();
}

const isFronted = process.argv.includes('--front');
const { port } = await (isFronted ? serve({ server: makeServer, port: 0, ...options }) : listen());
console.log(`READY ${port}`);
process.stdin.resume().on('end', () => process.exit());
