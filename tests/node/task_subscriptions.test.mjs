// Subscriptions that name tasks: the SDK serves them, and what becomes of the tasks comes between its events. (T-24, T-25)
//
// What is sent when is in tests/rust/task/subscriptions.rs, and tests/rust/engine/task_subscriptions.rs has the engine.
import assert from 'node:assert/strict';
import { describe } from 'node:test';

import { createMcpHandler } from '@modelcontextprotocol/server';
import { EventStore, openStore } from 'tailrope/mcp';

import { DURABLE } from './kit/addresses.mjs';
import { run } from './kit/program.mjs';
import { until, within } from './kit/raw.mjs';
import { AFTER_MS, Caller, Desk, hosted, makeServer, serve } from './kit/taskable.mjs';
import { ours, test } from './kit/test.mjs';

const CAPABILITIES = { tools: { listChanged: true } };
const _meta = { 'io.modelcontextprotocol/subscriptionId': 'sub' };
const accept = (name) => ({ action: 'accept', content: { name } });
const notifying = (desk = new Desk()) => ({ desk, make: () => makeServer(desk, CAPABILITIES) });
/** The next message; undefined at the end. */
const next = async (messages) => (await within(messages.next())).value;
/** What the next message says of a task. */
const told = async (messages) => {
  const { method, params } = await next(messages);
  assert.deepEqual([method, params._meta], ['notifications/tasks', _meta]);
  return params;
};

for (const face of ['node', 'fetch']) {
  describe(face, () => {
    test('what becomes of tasks comes between the events of the SDK', ours, async (t) => {
      const { port, desk, handler } = await serve(t, { face, ...notifying() });
      const caller = new Caller(port, { 'x-user': 'ann' });
      const foreign = await new Caller(port, { 'x-user': 'bob' }).task('wait', { gate: 'never' });
      const [asking, waiting] = [await caller.task('interview'), await caller.task('wait')];
      const taskIds = [asking, foreign, waiting, `${waiting.slice(0, -4)}AAAA`, 'none'];
      await caller.questions(asking);
      const messages = caller.listen({ toolsListChanged: true, taskIds });
      assert.deepEqual(await next(messages), {
        jsonrpc: '2.0',
        method: 'notifications/subscriptions/acknowledged',
        params: { notifications: { toolsListChanged: true, taskIds: [asking, waiting] }, _meta },
      });
      const asked = await told(messages);
      assert.deepEqual([asked.taskId, asked.status], [asking, 'input_required']);
      handler.notify.toolsChanged();
      assert.equal((await next(messages)).method, 'notifications/tools/list_changed');
      const [key] = Object.keys(asked.inputRequests);
      await caller.update(asking, { [key]: accept('Ann') });
      assert.equal((await told(messages)).status, 'working');
      assert.equal((await told(messages)).status, 'input_required');
      desk.open('go');
      const { status, result, resultType } = await told(messages);
      assert.deepEqual(
        [status, result, resultType],
        ['completed', (await caller.get(waiting)).result.result, undefined],
      );
      await caller.cancel(asking);
      const { taskId, status: last } = await told(messages);
      assert.deepEqual([taskId, last], [asking, 'cancelled']);
      handler.notify.toolsChanged();
      assert.equal((await next(messages)).method, 'notifications/tools/list_changed');
      await handler.close();
      assert.equal((await next(messages)).result.resultType, 'complete');
      assert.equal(await next(messages), undefined);
    });

    test('an SDK that has nothing to tell does not end it before the tasks are over', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const caller = new Caller(port);
      const taskId = await caller.task('wait');
      const messages = caller.listen({ toolsListChanged: true, taskIds: [taskId] });
      assert.deepEqual((await next(messages)).params.notifications, { taskIds: [taskId] });
      desk.open('go');
      assert.equal((await told(messages)).status, 'completed');
      assert.equal((await next(messages)).result.resultType, 'complete');
      assert.equal(await next(messages), undefined);
      // A task that is over is told at once.
      const methods = [];
      for await (const { method, result } of caller.listen({ taskIds: [taskId] })) {
        methods.push(method ?? result.resultType);
      }
      assert.deepEqual(methods, ['notifications/subscriptions/acknowledged', 'notifications/tasks', 'complete']);
    });

    test('a client that leaves is followed no more', ours, async (t) => {
      const { port, desk, handler, errors } = await serve(t, { face, ...notifying() });
      const caller = new Caller(port);
      const taskId = await caller.task('wait');
      const controller = new AbortController();
      const messages = caller.listen({ toolsListChanged: true, taskIds: [taskId] }, { signal: controller.signal });
      await next(messages);
      controller.abort();
      await assert.rejects(messages.next(), { name: 'AbortError' });
      // The SDK's own subscriptions are counted by its bus.
      await until(() => handler.bus.listenerCount === 1);
      desk.open('go');
      await caller.once(taskId, 'completed');
      assert.deepEqual(errors, []);
    });

    test('what the SDK refuses is refused as it says', ours, async (t) => {
      const { port, desk } = await serve(t, { face });
      const stock = await hosted(
        t,
        'fetch',
        createMcpHandler(() => makeServer(desk), { legacy: 'reject' }),
      );
      const refused = [];
      for (const caller of [new Caller(port), new Caller(stock)]) {
        const notifications = { toolsListChanged: 7, taskIds: ['none'] };
        const { status, body } = await caller.post('subscriptions/listen', { notifications });
        refused.push([status, JSON.parse(body)]);
      }
      assert.equal(refused[0][1].error.code, -32602);
      assert.deepEqual(refused[0], refused[1]);
    });
  });
}

test('T-05 only clients that take tasks can name them, and only so many', ours, async (t) => {
  const { port } = await serve(t);
  const listen = (caller, count) =>
    caller.post('subscriptions/listen', { notifications: { taskIds: Array.from({ length: count }, String) } });
  assert.equal((await listen(new Caller(port, { takesTasks: false }), 1)).error.code, -32021);
  const { status, error } = await listen(new Caller(port), 65);
  assert.deepEqual([status, error.code], [400, -32602]);
  assert.match(error.message, /64 tasks/);
  assert.equal((await listen(new Caller(port), 64)).type, 'text/event-stream');
});

test('a drain ends subscriptions, and does not wait for them', ours, () => {
  const { status, stdout, stderr } = run(`
    import { drain } from 'tailrope/mcp';
    import { Caller, serve } from './kit/taskable.mjs';
    const { port, desk } = await serve();
    const caller = new Caller(port);
    const taskId = await caller.task('wait');
    const messages = caller.listen({ taskIds: [taskId] });
    await messages.next();
    const drained = drain();
    const { value } = await messages.next();
    console.log(value.result.resultType, (await messages.next()).done);
    desk.open('go');
    console.log(await drained);
    process.exit();
  `);
  assert.equal(stderr, '');
  assert.deepEqual([status, stdout], [0, 'complete true\ntrue\n']);
});

for (const { kind, address } of DURABLE) {
  test(`any process tells what becomes of a task, ${kind}`, ours, async (t) => {
    const place = address(t);
    const desk = new Desk();
    const [here, there] = await Promise.all(
      [1, 2].map(async () => {
        const eventStore = new EventStore(await openStore(place), { taskAfterMs: AFTER_MS });
        const { port } = await serve(t, { ...notifying(desk), eventStore });
        return new Caller(port);
      }),
    );
    const taskId = await here.task('ask', { gate: 'go' });
    const messages = there.listen({ toolsListChanged: true, taskIds: [taskId] });
    assert.deepEqual((await next(messages)).params.notifications.taskIds, [taskId]);
    desk.open('go');
    const { inputRequests } = await told(messages);
    await here.update(taskId, { [Object.keys(inputRequests)[0]]: accept('Ann') });
    await here.cancel(taskId);
    for (let status; status !== 'cancelled'; ) {
      // States between may be skipped.
      ({ status } = await told(messages));
    }
    await messages.return();
  });
}
