// Nothing is left behind: short sessions, polls and cuts by the hundred, and what the process holds before and after.
//
// Each kind of load runs in rounds. The first fills whatever caches there are. What an allocator keeps follows the most
// that was alive at once, and that follows the speed of the machine, so some more rounds may add to it; a leak is what
// every round adds.
import assert from 'node:assert/strict';
import http from 'node:http';

import { ACCEPT, NEWEST, Peer, lastId, parseEvents, results, sleep, until, within } from './kit/raw.mjs';
import { spawnServer } from './kit/process.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const WORKERS = 12;
// Longer than a busy machine takes between two requests of a session.
const IDLE_MS = 8_000;
// What leaks for each of so many sessions, polls or connections is more than this.
const SLACK_BYTES = 1 << 20;
const SLACK_RSS_BYTES = 8 << 20;
const MAX_ROUNDS = 8;
const COUNTERS = ['sessions', 'connections', 'streams', 'events', 'bytes'];

const initialize = {
  protocolVersion: NEWEST,
  capabilities: {},
  clientInfo: { name: 'soak', version: '1' },
};

/** Requests on a kept-alive connection: thousands of them are not to be thousands of handshakes. */
class Line {
  #agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

  constructor(port, sessionId) {
    this.port = port;
    this.sessionId = sessionId;
  }

  ask(method, message, more = {}) {
    const headers = {
      accept: ACCEPT,
      'content-type': 'application/json',
      'mcp-protocol-version': NEWEST,
      ...(this.sessionId !== undefined && { 'mcp-session-id': this.sessionId }),
      ...more,
    };
    const options = { agent: this.#agent, port: this.port, host: '127.0.0.1', path: '/mcp', method, headers };
    const answered = new Promise((resolve, reject) => {
      const request = http.request(options, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (chunk) => (text += chunk));
        response.on('end', () => resolve({ response, status: response.statusCode, events: parseEvents(text) }));
        response.on('error', reject);
      });
      request.on('error', reject);
      request.end(message && JSON.stringify(message));
    });
    return within(answered);
  }

  async open() {
    this.sessionId = undefined;
    const { response } = await this.ask('POST', { jsonrpc: '2.0', id: 0, method: 'initialize', params: initialize });
    this.sessionId = response.headers['mcp-session-id'];
    const { status } = await this.ask('POST', { jsonrpc: '2.0', method: 'notifications/initialized' });
    assert.equal(status, 202);
  }

  close() {
    this.#agent.destroy();
  }
}

/** Runs `work(number)` for each number, several at once. */
async function atOnce(count, make) {
  let next = 0;
  const worker = async () => {
    const work = make();
    while (next < count) {
      await work(next++);
    }
  };
  await Promise.all(Array.from({ length: WORKERS }, worker));
}

const loads = {
  /** Every other one is deleted; the rest is left to the idle time. */
  async 'short sessions'({ port }, count) {
    const lines = [];
    await atOnce(count, () => {
      const line = new Line(port);
      lines.push(line);
      return async (number) => {
        await line.open();
        const params = { name: 'script', arguments: { steps: ['log x'] }, _meta: { progressToken: 1 } };
        const { status, events } = await line.ask('POST', { jsonrpc: '2.0', id: 1, method: 'tools/call', params });
        assert.ok(status === 200 && events.at(-1).isTerminal);
        if (number % 2) {
          assert.equal((await line.ask('DELETE')).status, 200);
        }
      };
    });
    lines.forEach((line) => line.close());
  },

  /** A call that is polled as often as polls are answered at once, then held, cut, and answered in the end. */
  async polls(child, count) {
    const peer = await Peer.open(child.port);
    const line = new Line(child.port, peer.sessionId);
    const name = `polled ${count} ${performance.now()}`.replaceAll(' ', '-');
    let cursor = lastId(await (await peer.script('close hold=0 retry=1', `gate ${name}`, 'return x')).rest());
    for (let number = 0; number < count; number++) {
      const { status, events } = await line.ask('GET', undefined, { 'last-event-id': cursor });
      assert.deepEqual([status, events.map(({ data }) => data)], [200, ['']]);
      cursor = lastId(events);
    }
    await child.ask(`open ${name}`);
    const found = await until(async () => {
      const events = await (await peer.resume(cursor)).rest();
      return results(events).length > 0 && events;
    });
    assert.deepEqual(results(found), ['x']);
    await peer.delete();
    line.close();
  },

  /** Streams that are opened and cut at once, half of them while their call is running. */
  async cuts({ port }, count) {
    const peer = await Peer.open(port);
    await atOnce(count, () => async (number) => {
      const call = () => peer.call('script', { steps: ['emit 2', 'sleep 2', 'emit 2'] }, `cut ${number}`);
      (await (number % 2 ? peer.get() : call())).drop();
    });
    await peer.delete();
  },
};
const counts = { 'short sessions': 500, polls: 400, cuts: 300 };

/** Whether the last round left something behind that the one before it did not. */
function hasGrown(rounds) {
  const [before, after] = rounds.slice(-2);
  return after.heap - before.heap >= SLACK_BYTES || after.rss - before.rss >= SLACK_RSS_BYTES;
}

onEachLine(async () => undefined, (line) => {
  test('load leaves nothing behind', { ...ours, timeout: 400_000 }, async (t) => {
    const child = await spawnServer(line, { engine: { sessionIdleMs: IDLE_MS } });
    t.after(() => child.close());
    const settled = async () => {
      // Each look is a collection of garbage.
      await until(async () => {
        await sleep(250);
        return (await child.ask('state')).stats.sessions === 0;
      }, 40_000);
      return child.ask('held');
    };
    for (const [name, load] of Object.entries(loads)) {
      const rounds = [];
      while (rounds.length < 2 || (hasGrown(rounds) && rounds.length < MAX_ROUNDS)) {
        await load(child, counts[name]);
        rounds.push(await settled());
      }
      const found = `${name}: ${JSON.stringify(rounds)}`;
      assert.ok(!hasGrown(rounds), found);
      for (const { stats, sessions, errors } of rounds) {
        const held = COUNTERS.map((counter) => stats[counter]);
        assert.deepEqual([...held, sessions, errors], [0, 0, 0, 0, 0, 0, []], found);
      }
    }
  });
});
