// Servers whose long calls become tasks, and clients of 2026-07-28 that hide nothing. As a program: node taskable.mjs STORE
// OWNER_LOST_MS, where every call becomes a task; its first line is its port.
import { AsyncLocalStorage } from 'node:async_hooks';
import http from 'node:http';
import { fileURLToPath } from 'node:url';

import { getRequestListener } from '@hono/node-server';
import { inputRequired, ProtocolError, Server } from '@modelcontextprotocol/server';
import { createResumableMcpHandler, EventStore, openStore } from 'tailrope/mcp';

import { ACCEPT, until } from './raw.mjs';

export const EXTENSION = 'io.modelcontextprotocol/tasks';
const REVISION = '2026-07-28';
/** How many messages the chatty handler sends, and how large they are. */
export const CHATTER = 256;
const CHATTER_BYTES = 4 << 10;
/** When calls become tasks here: soon, and behind what is answered at once. */
export const AFTER_MS = 40;
/** So long that no call becomes a task because of the time. */
export const NEVER_MS = 600_000;
/** Headers of a call that repeat an argument, one of another message, and what a handler sees of both. */
export const RED = { 'Mcp-Param-Color': 'red' };
export const SMALL = { 'Mcp-Param-Size': 'small' };
export const OF_CALL = ['mcp-param-color', 'red'];
export const accept = (name) => ({ action: 'accept', content: { name } });
export const never = () => new EventStore('memory:', { taskAfterMs: NEVER_MS });
/** What handlers of one process see of their requests. */
export const locals = new AsyncLocalStorage();

const schema = { type: 'object', properties: { name: { type: 'string' } } };
const text = (said) => ({ content: [{ type: 'text', text: said }] });

/** What one test has of its handlers: what they noted, and what they wait for. */
export class Desk {
  notes = [];
  /** How many messages the chatty handler has sent. */
  said = 0;
  #gates = new Map();

  gate(name) {
    if (!this.#gates.has(name)) {
      this.#gates.set(name, Promise.withResolvers?.() ?? resolvers());
    }
    return this.#gates.get(name);
  }

  open(name) {
    this.gate(name).resolve();
  }

  /** Waits until a handler has noted this. */
  noted(note) {
    return until(() => this.notes.includes(note));
  }
}

function resolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

const question = (message) => inputRequired.elicit({ message, requestedSchema: schema });

export const TOOLS = {
  quick: () => text('quick'),
  /** Waits for the gate of its argument. */
  async wait({ gate = 'go' }, { signal }, desk) {
    desk.notes.push('started');
    signal.addEventListener('abort', () => desk.notes.push('aborted'));
    await desk.gate(gate).promise;
    return text('waited');
  },
  async fail(_, __, desk) {
    await desk.gate('go').promise;
    return { ...text('no'), isError: true };
  },
  async broken(_, __, desk) {
    await desk.gate('go').promise;
    throw new ProtocolError(-32603, 'broken', { x: 1 });
  },
  async report(_, { _meta, notify }, desk) {
    const { progressToken } = _meta;
    await notify({ method: 'notifications/progress', params: { progressToken, progress: 3, total: 10 } });
    await desk.gate('go').promise;
    return text('reported');
  },
  /** Says so much, once in progress and once in its result. */
  async much({ size }, { _meta, notify }) {
    const message = 'x'.repeat(size);
    await notify({
      method: 'notifications/progress',
      params: { progressToken: _meta.progressToken, progress: 1, message },
    });
    return text(message);
  },
  /** Sends much; waits for each message to be sent, or for none. */
  async chatter({ waits = true }, { _meta, notify }, desk) {
    const message = 'x'.repeat(CHATTER_BYTES);
    try {
      for (let progress = 1; progress <= CHATTER; progress++) {
        const params = { progressToken: _meta.progressToken, progress, message };
        const sent = notify({ method: 'notifications/progress', params });
        await (waits && sent);
        desk.said = progress;
      }
      return text('said');
    } finally {
      desk.notes.push('over');
    }
  },
  /** Asks in every way that handlers of the older revisions have. */
  async interview(_, { elicitInput, requestSampling, send }, desk, server) {
    desk.notes.push('started');
    try {
      const { content } = await elicitInput({ message: 'Name?', requestedSchema: schema });
      const messages = [{ role: 'user', content: { type: 'text', text: 'a poem' } }];
      const sampled = await requestSampling({ messages, maxTokens: 9 });
      const params = { mode: 'form', message: 'Sure?', requestedSchema: schema };
      const [{ action }, { roots }] = await Promise.all([
        send({ method: 'elicitation/create', params }),
        server.listRoots(),
      ]);
      return text([content.name, sampled.content.text, action, roots.length].join());
    } catch (error) {
      desk.notes.push(error.message);
      throw error;
    }
  },
  /** Asks in two rounds, in both under the same key, after the gate of its argument. */
  async ask({ gate }, { inputResponses, requestState }, desk) {
    const { name } = inputResponses?.q?.content ?? {};
    desk.notes.push({ name, local: locals.getStore(), token: desk.auth, params: desk.params });
    if (name === undefined) {
      await (gate && desk.gate(gate).promise);
      return inputRequired({ inputRequests: { q: question('First?') }, requestState: 'one' });
    }
    return requestState() === 'one'
      ? inputRequired({ inputRequests: { q: question('Second?') }, requestState: 'two' })
      : text(`asked, ${name}`);
  },
};

export function makeServer(desk, capabilities = {}) {
  const server = new Server({ name: 's', version: '1' }, { capabilities: { tools: {}, logging: {}, ...capabilities } });
  const tools = Object.keys(TOOLS).map((name) => ({ name, inputSchema: { type: 'object' } }));
  server.setRequestHandler('tools/list', () => ({ tools }));
  server.setRequestHandler('tools/call', ({ params }, { mcpReq, http }) => {
    desk.auth = http?.authInfo?.token;
    desk.params = [...(http?.req?.headers ?? [])].flatMap(([name, value]) =>
      name.startsWith('mcp-param-') ? [name, value] : [],
    );
    const tool = TOOLS[params.name];
    if (tool === undefined) {
      throw new ProtocolError(-32602, `no ${params.name}`);
    }
    return tool(params.arguments ?? {}, mcpReq, desk, server);
  });
  return server;
}

/** A handler that is served through one of its faces, until the test ends. The user is who `x-user` names. */
export async function serve(t, { face = 'node', desk = new Desk(), make = () => makeServer(desk), ...options } = {}) {
  const errors = [];
  const eventStore = new EventStore('memory:', { taskAfterMs: AFTER_MS });
  const handler = createResumableMcpHandler(make, { eventStore, onerror: (error) => errors.push(error), ...options });
  const port = await hosted(t, face, handler);
  t?.after(() => handler.close());
  return { handler, desk, errors, port };
}

export const authOf = (user) => (user ? { token: user, clientId: user, scopes: [] } : undefined);

/** The port on which a handler of either package is served. */
export async function hosted(t, face, { node, fetch }) {
  const listener =
    face === 'node'
      ? (req, res) => {
          req.auth = authOf(req.headers['x-user']);
          return locals.run(req.headers['x-local'], () => node(req, res));
        }
      : getRequestListener((request) => {
          const authInfo = authOf(request.headers.get('x-user'));
          return locals.run(request.headers.get('x-local') ?? undefined, () => fetch(request, { authInfo }));
        });
  const server = http.createServer(listener);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t?.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return server.address().port;
}

/** What a client says of itself in each request. */
export const meta = (takesTasks = true, more = {}) => ({
  'io.modelcontextprotocol/protocolVersion': REVISION,
  'io.modelcontextprotocol/clientInfo': { name: 'c', version: '1' },
  'io.modelcontextprotocol/clientCapabilities': {
    elicitation: { form: {} },
    sampling: {},
    roots: {},
    ...(takesTasks && { extensions: { [EXTENSION]: {} } }),
  },
  ...more,
});

/** A client of one user. */
export class Caller {
  #headers;
  #takesTasks;
  #last = 0;

  constructor(port, { takesTasks = true, ...headers } = {}) {
    this.port = port;
    this.#takesTasks = takesTasks;
    this.#headers = headers;
  }

  /** The answer to one request, whose body is still to be read. */
  send(method, params = {}, { name, headers, id = ++this.#last, signal, _meta = meta(this.#takesTasks) } = {}) {
    return fetch(`http://127.0.0.1:${this.port}/mcp`, {
      method: 'POST',
      signal,
      headers: {
        accept: ACCEPT,
        'content-type': 'application/json',
        'mcp-protocol-version': REVISION,
        'mcp-method': method,
        ...(name !== undefined && { 'mcp-name': name }),
        ...this.#headers,
        ...headers,
      },
      body: JSON.stringify({ jsonrpc: '2.0', id, method, params: { ...params, _meta } }),
    });
  }

  /** The whole answer: its status, its type, its text, and what that says where it is JSON. */
  async post(method, params, options) {
    const response = await this.send(method, params, options);
    const type = response.headers.get('content-type');
    const body = await response.text();
    return { status: response.status, type, body, ...(type === 'application/json' && JSON.parse(body)) };
  }

  call(tool, args = {}, options = {}) {
    return this.post('tools/call', { name: tool, arguments: args }, { name: tool, ...options });
  }

  /** The id of the task that a call becomes. */
  async task(tool, args, options) {
    const { status, result } = await this.call(tool, args, options);
    if (status !== 200 || result?.resultType !== 'task') {
      throw new Error(`no task: ${status} ${JSON.stringify(result)}`);
    }
    return result.taskId;
  }

  /** The messages of a subscription, as they come. */
  async *listen(notifications, options) {
    const response = await this.send('subscriptions/listen', { notifications }, { id: 'sub', ...options });
    let text = '';
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      const blocks = (text + chunk).split('\n\n');
      text = blocks.pop();
      yield* blocks.map((block) => /^data: (.*)$/m.exec(block)).flatMap((data) => (data ? [JSON.parse(data[1])] : []));
    }
  }

  get(taskId) {
    return this.post('tasks/get', { taskId }, { name: taskId });
  }

  update(taskId, inputResponses, options) {
    return this.post('tasks/update', { taskId, inputResponses }, { name: taskId, ...options });
  }

  cancel(taskId) {
    return this.post('tasks/cancel', { taskId }, { name: taskId });
  }

  /** The task, once it is so. */
  once(taskId, status) {
    return until(async () => {
      const { result } = await this.get(taskId);
      return result?.status === status && result;
    });
  }

  /** The keys of the questions that a task asks, once there are some. */
  async questions(taskId) {
    return Object.keys((await this.once(taskId, 'input_required')).inputRequests);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [address, ownerLostMs] = process.argv.slice(2);
  const store = await openStore(address, { ownerLostMs: Number(ownerLostMs) });
  const { port } = await serve(undefined, { eventStore: new EventStore(store, { taskAfterMs: 0 }) });
  console.log(port);
}
