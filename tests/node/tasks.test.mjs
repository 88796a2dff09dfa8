// Long calls of revision 2026-07-28 become tasks, on the wire in front of an SDK that knows none. (T-01 to T-27)
//
// What becomes of a call is in the vectors tests/vectors/task_*.json, and tests/rust/engine/tasks.rs has the engine.
import assert from 'node:assert/strict';
import { describe } from 'node:test';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { EventStore } from 'tailrope/mcp';

import { until, within } from './kit/raw.mjs';
import {
  AFTER_MS,
  accept,
  Caller,
  Desk,
  EXTENSION,
  hosted,
  makeServer,
  meta,
  never,
  OF_CALL,
  RED,
  SMALL,
  serve,
} from './kit/taskable.mjs';
import { ours, test } from './kit/test.mjs';

const FACES = ['node', 'fetch'];

for (const face of FACES) {
  describe(face, () => {
    test('T-16 a long call becomes a task, which is there at once and has the result of the call', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const { status, type, body, result } = await caller.call('wait', {}, { id: 'call' });
      assert.deepEqual([status, type, JSON.parse(body).id], [200, 'application/json', 'call']);
      assert.deepEqual([result.resultType, result.status], ['task', 'working']);
      const { taskId } = result;
      const first = await caller.get(taskId);
      assert.deepEqual([first.status, first.result.resultType, first.result.status], [200, 'complete', 'working']);
      desk.open('go');
      const done = await caller.once(taskId, 'completed');
      const plain = (await new Caller(await stockPort(t, desk)).call('wait')).result;
      assert.deepEqual(done.result, plain);
    });

    test('T-13 an error result completes a task, and an error fails it', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const [failing, broken] = await Promise.all([caller.task('fail'), caller.task('broken')]);
      desk.open('go');
      assert.equal((await caller.once(failing, 'completed')).result.isError, true);
      const { error, result } = await caller.once(broken, 'failed');
      assert.deepEqual([error, result], [{ code: -32603, message: 'broken', data: { x: 1 } }, undefined]);
    });

    test('T-11 progress is what a task says of itself, and its caller sees nothing of our token', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const { type, result } = await caller.call('report');
      assert.equal(type, 'application/json');
      await until(async () => (await caller.get(result.taskId)).result.statusMessage === '3/10');
      desk.open('go');
      await caller.once(result.taskId, 'completed');
    });

    test('a quick call is answered whatever its size', ours, async (t) => {
      const eventStore = new EventStore('memory:', { taskAfterMs: 600_000, maxEventBytes: 20_000 });
      const { port } = await serve(t, { face, eventStore });
      const caller = new Caller(port);
      for (const progressToken of [undefined, 'mine']) {
        const asked = { _meta: meta(true, { progressToken }) };
        const { type, body, ...whole } = await caller.call('much', { size: 40_000 }, asked);
        const events = body.match(/(?<=^data: ).*$/gm)?.map((data) => JSON.parse(data));
        assert.equal(type, progressToken ? 'text/event-stream' : 'application/json');
        assert.equal(events?.length ?? 1, progressToken ? 2 : 1);
        assert.equal((events?.at(-1) ?? whole).result.content[0].text.length, 40_000);
      }
    });

    test('progress under a token of the client comes as it is sent, and the task behind it', ours, async (t) => {
      const { port } = await serve(t, { face, eventStore: new EventStore('memory:', { taskAfterMs: 300 }) });
      const { type, body } = await new Caller(port).call('report', {}, { _meta: meta(true, { progressToken: 7 }) });
      assert.equal(type, 'text/event-stream');
      const messages = body.match(/(?<=^data: ).*$/gm).map((data) => JSON.parse(data));
      assert.deepEqual([messages[0].params.progressToken, messages[1].result.resultType], [7, 'task']);
      assert.equal(messages.length, 2);
    });

    test('T-20 each round asks under a key of its own, and runs in the context of its answer', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const first = { 'x-user': 'ann', 'x-local': 'first' };
      const caller = new Caller(port, first);
      const taskId = await caller.task('ask', { gate: 'go' }, { headers: RED });
      desk.open('go');
      const keys = await caller.questions(taskId);
      const ack = await caller.update(
        taskId,
        { [keys[0]]: accept('Ann') },
        { headers: { 'x-local': 'second', ...SMALL } },
      );
      assert.deepEqual([ack.status, ack.result], [200, { resultType: 'complete' }]);
      const [key] = await until(async () => {
        const { result } = await caller.get(taskId);
        const open = Object.keys(result.inputRequests ?? {});
        return open.length > 0 && open[0] !== keys[0] && open;
      });
      await caller.update(taskId, { [key]: accept('Bob') }, { headers: { 'x-local': 'third' } });
      const { result } = await caller.once(taskId, 'completed');
      assert.equal(result.content[0].text, 'asked, Bob');
      assert.deepEqual(desk.notes, [
        { name: undefined, local: 'first', token: 'ann', params: OF_CALL },
        { name: 'Ann', local: 'second', token: 'ann', params: OF_CALL },
        { name: 'Bob', local: 'third', token: 'ann', params: OF_CALL },
      ]);
    });

    test('a handler that asks its client makes a task of its call, and runs once', ours, async (t) => {
      const { port, desk } = await serve(t, { face, eventStore: never() });
      const caller = new Caller(port);
      const taskId = await caller.task('interview');
      const asked = async (count) => {
        const { inputRequests } = await until(async () => {
          const { result } = await caller.get(taskId);
          return Object.keys(result.inputRequests ?? {}).length === count && result;
        });
        return Object.entries(inputRequests).map(([key, { method }]) => [method, key]);
      };
      const [[first, name]] = await asked(1);
      assert.equal(first, 'elicitation/create');
      await caller.update(taskId, { [name]: accept('Ann') });
      const [[second, poem]] = await until(async () => {
        const open = await asked(1);
        return open[0][1] !== name && open;
      });
      assert.equal(second, 'sampling/createMessage');
      const content = { type: 'text', text: 'roses' };
      await caller.update(taskId, { [poem]: { role: 'assistant', model: 'm', content } });
      const last = Object.fromEntries(await asked(2));
      await caller.update(taskId, { [last['roots/list']]: { roots: [{ uri: 'file:///a' }] } });
      await caller.update(taskId, { [last['elicitation/create']]: accept('yes') });
      const { result } = await caller.once(taskId, 'completed');
      assert.equal(result.content[0].text, 'Ann,roses,accept,1');
      assert.deepEqual(desk.notes, ['started']);
    });

    test('a handler whose task is cancelled waits for no answer', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const taskId = await caller.task('interview');
      await caller.questions(taskId);
      await caller.cancel(taskId);
      await desk.noted('Connection closed');
    });

    test('an answer that is no result is an error for who asked, at once', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const taskId = await caller.task('interview');
      const [key] = await caller.questions(taskId);
      await caller.update(taskId, { [key]: { ...accept('Ann'), _meta: null } });
      const { error } = await caller.once(taskId, 'failed');
      assert.deepEqual([error.code, desk.notes.at(-1)], [-32602, error.message]);
    });

    test('a question for which there is no task is refused as the SDK refuses it', ours, async (t) => {
      const eventStore = new EventStore('memory:', { taskAfterMs: AFTER_MS, maxSessions: 1 });
      const { port } = await serve(t, { face, eventStore });
      const caller = new Caller(port);
      await caller.task('wait');
      const { error } = await caller.call('interview');
      assert.match(error.message, /Server-to-client requests are not available/);
    });

    test('T-22 a cancellation reaches the handler, and is acknowledged again', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const taskId = await caller.task('wait');
      for (let times = 0; times < 2; times++) {
        const { status, result } = await caller.cancel(taskId);
        assert.deepEqual([status, result], [200, { resultType: 'complete' }]);
      }
      assert.equal((await caller.get(taskId)).result.status, 'cancelled');
      await desk.noted('aborted');
    });

    test('a client that goes before its call is a task cancels the call', ours, async (t) => {
      const { port, desk } = await serve(t, { face, eventStore: never() });
      const controller = new AbortController();
      const left = new Caller(port).call('wait', {}, { signal: controller.signal });
      await desk.noted('started');
      controller.abort();
      await assert.rejects(left, { name: 'AbortError' });
      await desk.noted('aborted');
    });

    test('T-27 the task of somebody else is one that is not there', ours, async (t) => {
      const { port } = await serve(t, { face });
      const taskId = await new Caller(port, { 'x-user': 'ann' }).task('wait');
      const bob = new Caller(port, { 'x-user': 'bob' });
      const unknown = `${taskId.slice(0, -4)}AAAA`;
      for (const ask of ['get', 'cancel']) {
        const [foreign, none] = [await bob[ask](taskId), await bob[ask](unknown)];
        assert.equal(foreign.status, 400);
        assert.equal(foreign.error.code, -32602);
        assert.equal(foreign.body.replace(/"id":\d+/, ''), none.body.replace(/"id":\d+/, ''));
      }
    });

    test('what is answered at once is answered as the SDK answers it', ours, async (t) => {
      const { port, desk } = await serve(t, { face, eventStore: never() });
      const [mine, stock] = [new Caller(port), new Caller(await stockPort(t, desk))];
      const asked = [
        (caller) => caller.call('quick'),
        (caller) => caller.call('quick', {}, { id: 'ä"' }),
        (caller) => caller.call('none'),
        (caller) => caller.call('quick', {}, { headers: { 'mcp-name': 'other' } }),
        (caller) => caller.call('quick', {}, { headers: { 'mcp-protocol-version': '2025-11-25' } }),
        (caller) => caller.call('quick', {}, { headers: { 'mcp-method': 'tools/list' } }),
        (caller) => caller.post('tools/call', {}, { name: 'quick' }),
        (caller) => caller.post('tools/list'),
        (caller) => caller.post('tasks/list'),
      ];
      for (const ask of asked) {
        const [{ status, type, body }, want] = [await ask(mine), await ask(stock)];
        assert.deepEqual({ status, type, body }, { status: want.status, type: want.type, body: want.body });
      }
    });
  });
}

/** The SDK's own handler. */
function stockPort(t, desk) {
  const { fetch } = createMcpHandler(() => makeServer(desk), { legacy: 'reject' });
  return hosted(t, 'fetch', { fetch });
}

test('T-02 the extension is announced beside what the server announces', ours, async (t) => {
  const { port, desk } = await serve(t);
  const { result } = await new Caller(port).post('server/discover');
  const stock = (await new Caller(await stockPort(t, desk)).post('server/discover')).result;
  assert.deepEqual(result.capabilities, { ...stock.capabilities, extensions: { [EXTENSION]: {} } });
  const streamed = await serve(t, { responseMode: 'sse' });
  const answer = await new Caller(streamed.port).post('server/discover');
  assert.deepEqual(answer.result.capabilities.extensions, { [EXTENSION]: {} });
});

test('beside a server that makes tasks itself nothing is done', ours, async (t) => {
  const capabilities = { extensions: { [EXTENSION]: {} } };
  const desk = new Desk();
  let asked = 0;
  const make = () => {
    asked += 1;
    return makeServer(desk, capabilities);
  };
  const { port } = await serve(t, { make, eventStore: new EventStore('memory:', { taskAfterMs: 0 }) });
  const caller = new Caller(port);
  assert.equal((await caller.call('quick')).result.resultType, 'complete');
  assert.equal((await caller.get('somebody-elses')).error.code, -32601);
  // It was asked once.
  assert.equal(asked, 3);
});

test('T-05 clients that take no tasks are steered, and refused where only a task would do', ours, async (t) => {
  const eventStore = new EventStore('memory:', { pace: { wait: { requiresTask: true } } });
  const { port } = await serve(t, { eventStore });
  const old = new Caller(port, { takesTasks: false });
  assert.equal((await old.call('quick')).error.code, -32022);
  const needed = { requiredCapabilities: { extensions: { [EXTENSION]: {} } } };
  for (const refused of [await old.call('wait'), await old.get('some'), await old.cancel('some')]) {
    assert.deepEqual([refused.status, refused.error.code, refused.error.data], [400, -32021, needed]);
  }
  const served = await serve(t, { preferResumable: false, eventStore });
  const plain = new Caller(served.port, { takesTasks: false });
  assert.equal((await plain.call('quick')).result.content[0].text, 'quick');
  assert.equal((await plain.call('wait')).error.code, -32021);
});

test('the official client of the extension, and a server of the SDK with tools that ask', ours, async (t) => {
  const desk = new Desk();
  const make = () => {
    const server = new McpServer({ name: 's', version: '1' });
    const text = (said) => ({ content: [{ type: 'text', text: said }] });
    server.registerTool('quick', {}, () => text('quick'));
    server.registerTool('wait', {}, async () => {
      await desk.gate('go').promise;
      return text('waited');
    });
    server.registerTool('greet', {}, async ({ mcpReq }) => {
      const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
      const { content } = await mcpReq.elicitInput({ message: 'Name?', requestedSchema });
      return text(`Hello, ${content.name}`);
    });
    return server;
  };
  const { port } = await serve(t, { make });
  const capabilities = { elicitation: { form: {} }, extensions: { [EXTENSION]: {} } };
  const clientInfo = { name: 'c', version: '1' };
  const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${port}/mcp`)));
  t.after(() => client.close());
  const raw = async ({ method, params, ...request }) => {
    const name = params.name ?? params.taskId;
    const caller = new Caller(port);
    const { body } = await caller.post(method, params, { name, id: request.id, _meta: params._meta });
    return JSON.parse(body);
  };
  const session = createTaskSessionFromClient(client, {
    endpointId: 'test',
    rawDispatch: raw,
    v2RequestFraming: { protocolVersion: '2026-07-28', clientInfo, clientCapabilities: capabilities },
    onInputRequest: async () => accept('Ann'),
  });
  t.after(() => session.close());
  const quick = await within(session.callTool('quick', {}).then((execution) => execution.settle()));
  assert.equal(resultFromTaskOutcome(quick.outcome).content[0].text, 'quick');
  const execution = await within(session.callTool('wait', {}));
  desk.open('go');
  const waited = await within(execution.settle());
  assert.equal(resultFromTaskOutcome(waited.outcome).content[0].text, 'waited');
  const greeted = await within(session.callTool('greet', {}).then((execution) => execution.settle()));
  assert.equal(resultFromTaskOutcome(greeted.outcome).content[0].text, 'Hello, Ann');
});
