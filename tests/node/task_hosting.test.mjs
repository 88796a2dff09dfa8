// Servers whose long calls become tasks, in their hosts: in front of them, when they end, and beside others with the same store.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { describe } from 'node:test';
import { fileURLToPath } from 'node:url';

import express from 'express';
import { EventStore, openStore, setLog, stats } from 'tailrope/mcp';

import { DURABLE } from './kit/addresses.mjs';
import { run } from './kit/program.mjs';
import { until, within } from './kit/raw.mjs';
import {
  AFTER_MS,
  accept,
  Caller,
  Desk,
  hosted,
  makeServer,
  NEVER_MS,
  never,
  OF_CALL,
  RED,
  SMALL,
  serve,
} from './kit/taskable.mjs';
import { ours, test } from './kit/test.mjs';

test('a handler behind a parser, mounted in express', ours, async (t) => {
  const { handler, desk } = await serve(t);
  const app = express();
  app.use(express.json());
  app.all('/mcp', handler.node);
  const caller = new Caller(await hosted(t, 'node', { node: app }));
  const taskId = await caller.task('wait');
  desk.open('go');
  await caller.once(taskId, 'completed');
});

test('clients that take tasks are steered, too, where a store makes the ids', ours, async (t) => {
  const store = {
    storeEvent: async () => 'id',
    replayEventsAfter: async () => 'stream',
  };
  const { port } = await serve(t, { eventStore: store });
  assert.equal((await new Caller(port).call('quick')).error.code, -32022);
});

test('a handler that is closed ends its tasks', ours, async (t) => {
  const { handler, port, desk } = await serve(t);
  const before = stats();
  const caller = new Caller(port);
  await caller.task('wait');
  await caller.task('ask', { gate: 'go' });
  assert.equal(stats().tasksCreated, before.tasksCreated + 2);
  await handler.close();
  await desk.noted('aborted');
  await until(() => stats().tasks === before.tasks);
});

test('a handler that is closed answers the calls that are no tasks yet', ours, async (t) => {
  const { handler, port, desk } = await serve(t, { eventStore: never() });
  const call = new Caller(port).call('wait', {}, { id: 'call' });
  await desk.noted('started');
  await handler.close();
  const { status, body } = await within(call);
  // As the SDK answers it.
  assert.deepEqual([status, body], [499, '']);
});

test('a call that ends badly has a record', ours, async (t) => {
  const records = [];
  setLog((_level, line, fields) => line.startsWith('call ended') && records.push(fields));
  t.after(() => setLog(() => {}));
  const eventStore = new EventStore('memory:', { taskAfterMs: AFTER_MS, logUser: () => 'Bob' });
  const { port, desk } = await serve(t, { eventStore });
  const caller = new Caller(port, { 'x-user': 'ann' });
  const taskId = await caller.task('broken');
  desk.open('go');
  await caller.once(taskId, 'failed');
  await until(() => records.length > 0);
  const told = records.map(({ tool, user, outcome, sdk }) => ({ tool, user, outcome, sdk }));
  const sdk = '@modelcontextprotocol/server 2.x';
  assert.deepEqual(told, [{ tool: 'broken', user: 'Bob', outcome: 'error', sdk }]);
});

test('a fault of ours costs one call', ours, async (t) => {
  const { TaskCall } = createRequire(import.meta.url)('../../bindings-node/tailrope.node');
  const { takeSteps } = TaskCall.prototype;
  t.after(() => {
    TaskCall.prototype.takeSteps = takeSteps;
  });
  const lines = [];
  setLog((_, line) => lines.push(line));
  const { port, desk, errors } = await serve(t);
  const caller = new Caller(port);
  const taskId = await caller.task('wait');
  TaskCall.prototype.takeSteps = () => {
    TaskCall.prototype.takeSteps = takeSteps;
    throw new Error('a fault');
  };
  const { status, error } = await caller.call('wait', { gate: 'never' });
  assert.deepEqual([status, error.code], [500, -32603]);
  assert.deepEqual(
    errors.map(({ message }) => message),
    ['a fault'],
  );
  assert.match(lines.join(), /a call that may become a task is not served any more: Error: a fault/);
  desk.open('go');
  await caller.once(taskId, 'completed');
});

test('a server that cannot be made fails its task, and is told', ours, async (t) => {
  const desk = new Desk();
  let made = 0;
  const make = () => {
    made += 1;
    if (made > 2) {
      throw new Error('no server');
    }
    return makeServer(desk);
  };
  const { port, errors } = await serve(t, { make, eventStore: new EventStore('memory:', { taskAfterMs: 0 }) });
  const caller = new Caller(port);
  // The first server was asked whether it makes tasks, the second one serves the call.
  const taskId = await caller.task('ask');
  const [key] = await caller.questions(taskId);
  await caller.update(taskId, { [key]: accept('Ann') });
  const { error } = await caller.once(taskId, 'failed');
  assert.equal(error.code, -32603);
  assert.equal(errors[0].message, 'no server');
});

test('a drain waits for the calls of tasks', ours, () => {
  const { status, stdout, stderr } = run(`
    import { drain } from 'tailrope/mcp';
    import { Caller, serve } from './kit/taskable.mjs';
    const { port, desk } = await serve();
    const taskId = await new Caller(port).task('wait');
    const drained = drain();
    console.log(await Promise.race([drained, new Promise((resolve) => setTimeout(resolve, 50, 'waits'))]));
    desk.open('go');
    console.log(await drained, (await new Caller(port).get(taskId)).result.status);
    process.exit();
  `);
  assert.equal(stderr, '');
  assert.deepEqual([status, stdout], [0, 'waits\ntrue completed\n']);
});

for (const { kind, address } of DURABLE) {
  describe(`two processes, ${kind}`, () => {
    /** Two servers with one store, and a client of each. */
    async function pair(t) {
      const place = address(t);
      const desk = new Desk();
      const one = async () => {
        const eventStore = new EventStore(await openStore(place, { ownerLostMs: NEVER_MS }), { taskAfterMs: AFTER_MS });
        const { port, handler } = await serve(t, { desk, eventStore });
        return Object.assign(new Caller(port, { 'x-user': 'ann', 'x-local': 'call' }), { handler });
      };
      return { desk, here: await one(), there: await one() };
    }

    test('any process says how a task stands', ours, async (t) => {
      const { desk, here, there } = await pair(t);
      const taskId = await here.task('wait');
      assert.equal((await there.get(taskId)).result.status, 'working');
      desk.open('go');
      assert.equal((await there.once(taskId, 'completed')).result.content[0].text, 'waited');
    });

    test('T-21 answers that come to another process go on where the call runs', ours, async (t) => {
      const { desk, here, there } = await pair(t);
      const taskId = await here.task('ask', { gate: 'go' }, { headers: RED });
      desk.open('go');
      for (const name of ['Ann', 'Bob']) {
        const [key] = await there.questions(taskId);
        const { status, result } = await there.update(taskId, { [key]: accept(name) });
        assert.deepEqual([status, result], [200, { resultType: 'complete' }]);
        // The key is gone with the acknowledgement.
        const left = (await there.get(taskId)).result.inputRequests ?? {};
        assert.ok(!(key in left));
      }
      const { result } = await there.once(taskId, 'completed');
      assert.equal(result.content[0].text, 'asked, Bob');
      // What travels has no credentials in it, and is in the context of no request of this process.
      assert.deepEqual(
        desk.notes.map(({ local, token, params }) => [local, token, params]),
        [
          ['call', 'ann', OF_CALL],
          [undefined, '', OF_CALL],
          [undefined, '', OF_CALL],
        ],
      );
    });

    test('T-16 a task that waits for its client goes on in the next process', ours, async (t) => {
      const { desk, here, there } = await pair(t);
      const taskId = await here.task('ask', { gate: 'go' }, { headers: RED });
      desk.open('go');
      const [key] = await here.questions(taskId);
      await here.handler.close();
      await there.update(taskId, { [key]: accept('Ann') }, { headers: { 'x-local': 'second', ...SMALL } });
      await until(() => desk.notes.length === 2);
      assert.deepEqual(desk.notes[1], { name: 'Ann', local: 'second', token: 'ann', params: OF_CALL });
    });

    test('T-22 a cancellation that comes to another process reaches the handler', ours, async (t) => {
      const { desk, here, there } = await pair(t);
      const taskId = await here.task('wait');
      assert.deepEqual((await there.cancel(taskId)).result, { resultType: 'complete' });
      await desk.noted('aborted');
      assert.equal((await here.get(taskId)).result.status, 'cancelled');
    });

    test(
      'T-14 a task that ran in a process that was killed has failed; one that asks goes on here',
      ours,
      async (t) => {
        const place = address(t);
        const owner = await processOf(t, place);
        const there = new Caller(owner.port);
        const [running, asking] = [await there.task('wait'), await there.task('ask')];
        const desk = new Desk();
        const store = await openStore(place, { ownerLostMs: 1_000 });
        const { port } = await serve(t, { desk, eventStore: new EventStore(store, { taskAfterMs: AFTER_MS }) });
        const here = new Caller(port);
        assert.equal((await here.get(running)).result.status, 'working');
        await owner.kill();
        const { error } = await here.once(running, 'failed');
        assert.equal(error.code, -32603);
        for (const name of ['Ann', 'Bob']) {
          const [key] = await here.questions(asking);
          assert.deepEqual((await here.update(asking, { [key]: accept(name) })).result, { resultType: 'complete' });
        }
        assert.equal((await here.once(asking, 'completed')).result.content[0].text, 'asked, Bob');
      },
    );
  });
}

const PROGRAM = fileURLToPath(new URL('kit/taskable.mjs', import.meta.url));

/** A process that has tasks. */
async function processOf(t, place) {
  const child = spawn(process.execPath, [PROGRAM, place, '1000'], { stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const exited = once(child, 'exit');
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const port = Number((await within(lines.next())).value);
  return {
    port,
    async kill() {
      child.kill('SIGKILL');
      await within(exited);
    },
  };
}
