// Clients of calls that may become tasks, and that read slowly: their handlers wait, and nothing is kept without a bound.
import assert from 'node:assert/strict';
import { setImmediate } from 'node:timers/promises';

import { EventStore } from 'tailrope/mcp';

import { until } from './kit/raw.mjs';
import { AFTER_MS, Caller, CHATTER, hosted, meta, NEVER_MS, serve } from './kit/taskable.mjs';
import { ours, test } from './kit/test.mjs';

/** Waits until nothing more is said, or all. */
async function silence(desk) {
  let [said, turns] = [-1, 0];
  while (turns < 500 && desk.said < CHATTER) {
    await setImmediate();
    turns = desk.said === said && said > 0 ? turns + 1 : 0;
    said = desk.said;
  }
}

/** The handler behind something that takes nothing of an answer until it may. */
const HELD = {
  node:
    ({ node }, may) =>
    (req, res) => {
      const [write, end] = [res.write.bind(res), res.end.bind(res)];
      const held = [];
      let isHeld = true;
      res.write = (chunk) => (isHeld ? held.push(chunk) < 0 : write(chunk));
      res.end = (...last) => void may.then(() => end(...last));
      may.then(() => {
        isHeld = false;
        held.forEach((chunk) => write(chunk));
        res.emit('drain');
      });
      return node(req, res);
    },
  fetch:
    ({ fetch }, may) =>
    async (request, options) => {
      const { body, status, headers } = await fetch(request, options);
      const reader = body.getReader();
      const pull = async (controller) => {
        await may;
        const { done, value } = await reader.read();
        return done ? controller.close() : controller.enqueue(value);
      };
      const held = new ReadableStream({ pull, cancel: () => reader.cancel() }, { highWaterMark: 0 });
      return new Response(held, { status, headers });
    },
};

/** A call that says much, and whose answer is taken from when `read` is called. */
async function chatter(t, face, taskAfterMs, args = {}) {
  const { handler, desk } = await serve(t, { eventStore: new EventStore('memory:', { taskAfterMs }) });
  const port = await hosted(t, face, { [face]: HELD[face](handler, desk.gate('read').promise) });
  const controller = new AbortController();
  const { signal } = controller;
  const options = { name: 'chatter', _meta: meta(true, { progressToken: 7 }), signal };
  const answer = new Caller(port).send('tools/call', { name: 'chatter', arguments: args }, options);
  return { handler, desk, answer, controller };
}

/** What came, in order: the numbers of the messages, and the result. */
async function messages({ desk, answer }) {
  desk.open('read');
  const body = await (await answer).text();
  const found = body.match(/(?<=^data: ).*$/gm).map((data) => JSON.parse(data));
  return { said: found.slice(0, -1).map(({ params }) => params.progress), result: found.at(-1).result };
}

const ALL = Array.from({ length: CHATTER }, (_, at) => at + 1);

for (const face of ['node', 'fetch']) {
  test(`${face}: a handler waits for a client that reads slowly`, ours, async (t) => {
    const call = await chatter(t, face, NEVER_MS);
    await silence(call.desk);
    assert.ok(call.desk.said < CHATTER / 2, `${call.desk.said} are sent before there is room`);
    const { said, result } = await messages(call);
    assert.deepEqual(said, ALL);
    assert.equal(result.content[0].text, 'said');
  });

  test(`${face}: what a handler does not wait for comes in order, and before its result`, ours, async (t) => {
    const { said, result } = await messages(await chatter(t, face, NEVER_MS, { waits: false }));
    assert.deepEqual(said, ALL);
    assert.equal(result.content[0].text, 'said');
  });

  test(`${face}: a handler waits for nobody once its call is a task`, ours, async (t) => {
    const call = await chatter(t, face, AFTER_MS);
    await until(() => call.desk.said === CHATTER);
    const { said, result } = await messages(call);
    assert.deepEqual(said, ALL.slice(0, said.length));
    assert.ok(said.length < CHATTER);
    assert.equal(result.resultType, 'task');
  });

  test(`${face}: a handler waits for no client that is gone`, ours, async (t) => {
    const { desk, answer, controller } = await chatter(t, face, NEVER_MS);
    await silence(desk);
    controller.abort();
    await assert.rejects(async () => (await answer).text(), { name: 'AbortError' });
    await desk.noted('over');
  });

  test(`${face}: a handler waits for no client when its server ends`, ours, async (t) => {
    const { handler, desk, answer } = await chatter(t, face, NEVER_MS);
    await silence(desk);
    await handler.close();
    await desk.noted('over');
    desk.open('read');
    await (await answer).text();
  });
}
