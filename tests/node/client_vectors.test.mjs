// The traces of tests/vectors/client.json: on the native class, and over sockets as far as a trace can be played there.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';

import { resumableFetch } from 'tailrope/client';

import { ClientOptions, ClientStream } from '../../bindings-node/lib/native.mjs';
import { until, within } from './kit/raw.mjs';
import { ScriptedServer } from './kit/scripted.mjs';

const { vectors } = JSON.parse(readFileSync(new URL('../vectors/client.json', import.meta.url), 'utf8'));
const camel = (name) => name.replace(/_./g, (at) => at[1].toUpperCase());
const optionsOf = ({ options = {} }) => Object.fromEntries(Object.entries(options).map(([k, v]) => [camel(k), v]));
const frame = ({ deliver, event }) =>
  `${event === undefined ? '' : `event: ${event}\n`}data: ${deliver.replace(/\n/g, '')}\n\n`;
const isDelivery = (step) => step.deliver !== undefined;

function open({ stream, ...vector }) {
  const options = new ClientOptions(optionsOf(vector));
  if (stream === 'standalone') {
    return ClientStream.standalone(options, false, 0);
  }
  return stream.requests !== undefined
    ? ClientStream.posted(JSON.stringify(stream.requests), options, false, 0)
    : stream.cursor !== undefined
      ? ClientStream.continued(stream.cursor, options, false, 0)
      : ClientStream.saved(stream.saved, options, false, 0);
}

function written({ kind, lastEventId, first, count, code }) {
  switch (kind) {
    case 'connect':
      return { connect: lastEventId ?? null };
    case 'gap':
      return { gap: [first, count] };
    case 'cursorLost':
      return 'cursor_lost';
    case 'failed':
      return { failed: code };
    default:
      return kind;
  }
}

/** Plays a trace with its texts cut into chunks of so many bytes. */
function play(vector, size) {
  const native = open(vector);
  for (const { at, jitter = 0, in: input, out, ...more } of vector.steps) {
    let frames = '';
    const steps = [];
    const take = (todo) => {
      frames += todo?.frames?.toString() ?? '';
      steps.push(...(todo?.steps ?? []).map(written));
    };
    if (input === 'start') {
      take(native.start());
    } else if (typeof input === 'string') {
      take(native[input](at, jitter));
    } else if (input.head !== undefined) {
      const { status, content_type: type = 'text/event-stream', retry_after_ms: retryAfterMs } = input.head;
      take(native.head(at, jitter, status, type ?? undefined, retryAfterMs));
    } else if (input.cancelled !== undefined) {
      take(native.cancelled(at, jitter, JSON.stringify(input.cancelled)));
    } else {
      const bytes = new TextEncoder().encode(input.text);
      for (let from = 0; from < bytes.length; from += size) {
        take(native.bytes(at, jitter, bytes.subarray(from, from + size)));
      }
    }
    assert.deepEqual(
      { frames, steps },
      {
        frames: out.filter(isDelivery).map(frame).join(''),
        steps: out.filter((step) => !isDelivery(step)),
      },
    );
    if ('deadline' in more) {
      assert.equal(native.deadline, more.deadline ?? Infinity);
    }
    for (const name of ['cursor', 'attempts'].filter((name) => name in more)) {
      assert.equal(native[name], more[name]);
    }
    if (more.requests !== undefined) {
      assert.deepEqual(JSON.parse(native.requests), more.requests);
    }
  }
}

describe('on the native class', () => {
  for (const vector of vectors) {
    test(vector.name, () => {
      // However the bytes are cut.
      for (const size of [Infinity, 7, 1]) {
        play(vector, size);
      }
    });
  }
});

/** How long a connect comes after what it follows, and what nobody waits for in a test. */
const LONGEST_WAIT_MS = 20_000;
const isConnect = (step) => step.connect !== undefined;
const isLong = ({ steps }) =>
  steps.some(({ at, out }, index) => out.some(isConnect) && at - (steps[index - 1]?.at ?? 0) > LONGEST_WAIT_MS) ||
  steps.some(({ at, in: how }, index) => /^(end|broken)$/.test(how) && at - steps[index - 1].at >= LONGEST_WAIT_MS) ||
  steps.some(({ at, out }) => out.includes('disconnect') && at > LONGEST_WAIT_MS);

/** A trace between a client and a server that both follow it. */
class Played {
  #fetch;
  #init;
  #exchange;
  #stop = new AbortController();
  #isTimely = false;
  #pass;
  /** When the server ended the connection, by its clock and in the trace. */
  #ended;
  gaps = [];
  text = '';

  constructor(server, vector) {
    this.server = server;
    this.vector = vector;
    this.#fetch = resumableFetch(undefined, {
      ...optionsOf(vector),
      jitter: 0,
      onGap: ({ first, count }) => this.gaps.push(first === null ? 'cursor_lost' : { gap: [first, count] }),
      // Time passes only while the trace says so; no less of it than there should.
      schedule: (delayMs, wake) => {
        this.isWaiting = true;
        this.#pass = () => setTimeout(wake, delayMs);
        if (this.#isTimely) {
          this.#pass();
        }
      },
    });
    this.#init = { signal: this.#stop.signal };
    this.read = this.#read().catch((error) => {
      this.error = error;
    });
  }

  async #read() {
    const { url } = this.server;
    const { requests, cursor, saved } = this.vector.stream;
    if (saved !== undefined) {
      for await (const message of this.#fetch.resume(saved, { url, ...this.#init })) {
        this.text += frame({ deliver: JSON.stringify(message) });
      }
      return;
    }
    const headers = { accept: 'text/event-stream', ...(cursor && { 'last-event-id': cursor }) };
    const calls = requests?.map((id) => ({ jsonrpc: '2.0', id, method: 'm' }));
    const body = calls && { method: 'POST', body: JSON.stringify(calls.length === 1 ? calls[0] : calls) };
    this.response = await this.#fetch(url, { headers, ...body, ...this.#init });
    const decoder = new TextDecoder();
    for await (const chunk of this.response.body ?? []) {
      this.text += decoder.decode(chunk, { stream: true });
    }
  }

  /** The first request of a stream that begins with a POST. */
  async posted() {
    this.#exchange = (await this.server.next('the POST')).head();
  }

  async step({ at, jitter = 0, in: input, out }) {
    if (input.head !== undefined) {
      this.#answer(input.head);
    } else if (input.text !== undefined) {
      this.#exchange.text(input.text);
    } else if (input === 'end' || input === 'broken') {
      this.isWaiting = false;
      this.#ended = { clock: input === 'end' ? this.#exchange.end() : this.#exchange.break(), at, jitter };
      if (out.length === 0 && !this.isFinished) {
        // Its client has noticed when it waits.
        await until(() => this.isWaiting);
      }
    } else if (input === 'abort') {
      this.#stop.abort();
    } else if (input.cancelled !== undefined) {
      const params = { requestId: input.cancelled };
      const body = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params });
      const sent = this.#fetch(this.server.url, { method: 'POST', body });
      (await this.server.next('the cancellation')).head(202, {}).end();
      assert.equal((await sent).status, 202);
    }
    this.isFinished ||= out.includes('finished');
    const connect = out.find(isConnect);
    if (connect !== undefined) {
      await this.#connected(connect.connect, at);
    }
  }

  #answer({ status, content_type: type = 'text/event-stream', retry_after_ms: retryAfterMs }) {
    const headers = {
      ...(type !== null && { 'content-type': type }),
      ...(retryAfterMs !== undefined && { 'retry-after': retryAfterMs / 1_000 }),
    };
    this.#exchange.head(status, headers);
    if (status !== 200) {
      this.#ended = { ...this.#ended, clock: this.#exchange.end(), at: this.now };
    }
  }

  async #connected(cursor, at) {
    const wanted = Math.max(0, at - (this.#ended?.at ?? at));
    this.#isTimely = true;
    this.#pass?.();
    this.#exchange = await this.server.next(`the GET after ${cursor}`);
    this.#isTimely = false;
    this.#pass = undefined;
    const { method, lastEventId, at: came } = this.#exchange;
    assert.deepEqual([method, lastEventId], ['GET', cursor ?? undefined]);
    if (this.#ended?.jitter === 0) {
      assert.ok(came - this.#ended.clock >= wanted, `${came - this.#ended.clock} ms instead of ${wanted}`);
    }
  }

  async stop() {
    this.#stop.abort();
    await within(this.read);
  }
}

async function playOverSockets(t, vector) {
  const played = new Played(await ScriptedServer.open(t), vector);
  t.after(() => played.stop());
  if (vector.stream.requests !== undefined) {
    await played.posted();
  }
  for (const step of vector.steps) {
    played.now = step.at;
    await played.step(step);
  }
  const out = vector.steps.flatMap((step) => step.out);
  const delivered = out.filter(isDelivery).map(frame).join('');
  const gaps = out.filter((step) => step.gap !== undefined || step === 'cursor_lost');
  const failed = out.find((step) => step.failed !== undefined)?.failed;
  if (out.includes('finished')) {
    await within(played.read);
    assert.deepEqual([played.text, played.error], [delivered, undefined]);
  } else if (failed !== undefined && vector.stream.requests !== undefined) {
    await within(played.read);
    assert.ok(played.text.startsWith(delivered), played.text);
    const errors = played.text
      .slice(delivered.length)
      .match(/(?<=^data: ).*$/gm)
      .map((text) => JSON.parse(text));
    assert.deepEqual(
      errors.map(({ error }) => [error.code, error.data.tailrope]),
      [[-32000, failed]],
    );
  } else if (failed !== undefined && vector.stream.saved !== undefined) {
    await within(played.read);
    assert.deepEqual([played.text, played.error?.code], [delivered, failed]);
  } else if (failed !== undefined) {
    await within(played.read);
    assert.deepEqual([played.response.status, played.text], [405, '']);
  } else {
    const isTold = () => played.text.length >= delivered.length && played.gaps.length >= gaps.length;
    await until(() => played.error !== undefined || isTold());
    await played.stop();
    assert.equal(played.text, delivered);
  }
  assert.deepEqual(played.gaps, gaps);
  // Nobody came back who was not asked for.
  assert.equal(played.server.waiting, 0);
}

describe('over sockets', { concurrency: 8, timeout: 120_000 }, () => {
  for (const vector of vectors) {
    const skip = isLong(vector) && 'it waits for minutes; see client.test.mjs for silence';
    test(vector.name, { skip, timeout: 120_000 }, (t) => playOverSockets(t, vector));
  }
});
