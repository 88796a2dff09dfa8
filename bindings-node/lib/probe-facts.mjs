// What several checks need to know, each found out once: sessions, a short stream, a long call; its words.
import { Endpoint } from './probe-http.mjs';
import { NEWEST, RESUMABLE, Run, Session } from './probe-session.mjs';

/** A live check cuts a call while it runs, several times. */
const SHORTEST_CALL_MS = 500;
const LONGEST_CALL_MS = 120_000;
/** How long what must not come is waited for, and what comes by itself. */
const SETTLE_MS = 500;
export const MADE_UP = 'tailrope-probe-made-up';

/** A check that cannot be made, and why. */
export class NotChecked extends Error {}

/** Nothing can be checked at all: not reachable, or no MCP server. */
export class Unusable extends Error {}

/** What a check found; thrown where that is found. */
export class Outcome {
  constructor(kind, reason) {
    this.kind = kind;
    this.reason = reason;
  }
}

export const ok = (reason) => new Outcome('ok', reason);
export const warn = (reason) => new Outcome('warn', reason);
export const fault = (reason) => new Outcome('fault', reason);

/** One probe of one server. */
export class Facts {
  sessions = [];
  server = {};
  calls = 0;
  /** What was sent and got, of the check that runs. */
  evidence = [];
  /** How long the longest request took that nobody disturbed; none is known to take long before. */
  knownMs = 0;
  found = new Map();
  lastId = 0;

  constructor(options) {
    this.options = options;
    this.endpoint = new Endpoint(options.url, options.headers);
    this.timeoutMs = options.timeoutMs;
  }

  /** A fact, or what kept it from being found, again. */
  once(name, find) {
    if (!this.found.has(name)) {
      const found = find();
      // Whoever asks hears of it.
      found.catch(() => {});
      this.found.set(name, found);
    }
    return this.found.get(name);
  }

  note(what, exchange) {
    this.evidence.push(() => `${what}: ${shown(exchange)}`);
    return exchange;
  }

  nextId() {
    this.lastId += 1;
    return this.lastId;
  }

  // Sessions.

  session(name) {
    const session = new Session(this.endpoint, this.timeoutMs, name);
    this.sessions.push(session);
    return session;
  }

  /** A session of our own by this name, opened when it is first asked for. */
  opened(name, revision = NEWEST) {
    return this.once(`session ${name}`, async () => {
      const session = this.session(name);
      const answer = await session.open(revision);
      if (session.revision === undefined) {
        throw new NotChecked(`initialize with ${revision} is answered ${answer.status}`);
      }
      await session.notify('notifications/initialized');
      return session;
    });
  }

  /** The session that most is done with. */
  async first() {
    const session = await this.opening();
    if (!RESUMABLE.includes(session.revision)) {
      throw new NotChecked(`revision ${session.revision} has no resumption`);
    }
    if (session.id === undefined) {
      throw new NotChecked('the server gives no session id');
    }
    return session;
  }

  /** The same, whatever came of it; `initialize` and `initialized` are the answers. */
  opening() {
    return this.once('session a', async () => {
      const session = this.session('a');
      const answer = (this.initialize = await session.open(NEWEST));
      if (session.revision === undefined) {
        if (answer.json?.error?.code === -32_022) {
          throw new NotChecked('the server has only revisions without resumption');
        }
        const { location } = answer.headers;
        const moved = location === undefined ? '' : `, it is at ${location}`;
        throw new Unusable(`no MCP server for us: initialize is answered ${shown(answer)}${moved}`);
      }
      const about = answer.json.result.serverInfo ?? {};
      for (const key of ['name', 'version']) {
        if (about[key]) {
          this.server[key] = String(about[key]);
        }
      }
      this.initialized = await session.notify('notifications/initialized');
      return session;
    });
  }

  second() {
    return this.opened('b');
  }

  // The short stream: what a ping is answered with, or the tool where that is no stream.

  source() {
    return this.once('source', async () =>
      (await this.ping()).isStream ? 'ping' : `tools/call ${(await this.tool())[0]}`,
    );
  }

  ping() {
    return this.once('ping', async () => {
      const session = await this.first();
      const exchange = await session.request(this.nextId(), 'ping');
      await exchange.until(() => exchange.isOver || exchange.response !== undefined, this.timeoutMs);
      return settled(exchange);
    });
  }

  /** A short request, just sent. */
  async begin(session, id) {
    if ((await this.source()) === 'ping') {
      return new Run(session, id, await session.request(id, 'ping'));
    }
    return this.call(session, id);
  }

  /** The answer to a short request, read to its end. */
  short() {
    return this.once('short', async () => {
      const session = await this.first();
      const started = performance.now();
      const run = await this.begin(session, this.nextId());
      const exchange = run.last;
      if (!exchange.isStream) {
        throw new NotChecked(`${await this.source()} is answered ${shownType(exchange)}`);
      }
      const isCall = (await this.source()) !== 'ping';
      const withinMs = isCall ? LONGEST_CALL_MS : this.timeoutMs;
      await exchange.until(() => exchange.isOver || exchange.response !== undefined, withinMs);
      this.knownMs = isCall ? performance.now() - started : 0;
      await exchange.until(() => exchange.isOver, this.timeoutMs);
      return run;
    });
  }

  /** The same, of a server that gives ids at all. */
  async resumable() {
    const run = await this.short();
    if (run.firstId === undefined) {
      throw new NotChecked('no event has an id');
    }
    return run;
  }

  /** A short request whose connection is cut after its first event with an id. */
  async missed(session, id) {
    const run = await this.begin(session, id);
    if (!(await run.hasId())) {
      throw new NotChecked('no event has an id');
    }
    const exchange = run.last;
    exchange.cut();
    // What came with it in one piece counts as lost.
    const first = exchange.blocks.findIndex((block) => block.id !== undefined);
    if (exchange.blocks[first].isResponse) {
      throw new NotChecked('the first id comes with the response: nothing can be missed after it');
    }
    exchange.blocks.splice(first + 1);
    exchange.response = undefined;
    exchange.state = 'cut';
    return run;
  }

  /** A request that was cut, after a resume from its first id: the last connection is that of the resume. */
  finished() {
    return this.once('finished', async () => {
      await this.resumable();
      const run = await this.missed(await this.first(), this.nextId());
      const exchange = await run.resume();
      await exchange.until(() => exchange.isOver || exchange.response !== undefined, this.patienceMs());
      return run;
    });
  }

  // The long call.

  /** Its name and arguments. */
  tool() {
    return this.once('tool', async () => {
      if (this.options.tool !== undefined) {
        return [this.options.tool, this.options.arguments ?? {}];
      }
      const session = await this.first();
      const exchange = await session.request(this.nextId(), 'tools/list');
      await exchange.until(() => exchange.isOver || exchange.response !== undefined, this.timeoutMs);
      for (const tool of exchange.json?.result?.tools ?? []) {
        if (tool.annotations?.readOnlyHint === true && !tool.inputSchema?.required?.length) {
          return [String(tool.name), {}];
        }
      }
      throw new NotChecked('no tool is read-only by its annotations and needs no argument: name one with --tool');
    });
  }

  async call(session, id) {
    const [name, args] = await this.tool();
    this.calls += 1;
    const params = { name, arguments: args, _meta: { progressToken: `probe-${session.name}-${id}` } };
    const message = { jsonrpc: '2.0', id, method: 'tools/call', params };
    // It may be answered with JSON, once it is over.
    return new Run(session, id, await session.post(message, this.knownMs ? this.patienceMs() : LONGEST_CALL_MS));
  }

  /** The undisturbed call, whatever came of it: how long it takes, what it sends, and what is wrong with it. */
  polled() {
    return this.once('reference', async () => {
      await this.resumable();
      const session = await this.first();
      const started = performance.now();
      const run = await this.call(session, this.nextId());
      const [name] = await this.tool();
      if (!run.last.isStream) {
        throw new NotChecked(`tools/call ${name} is answered ${shownType(run.last)}`);
      }
      const problem = await run.finish(LONGEST_CALL_MS);
      const durationMs = (this.knownMs = performance.now() - started);
      if (problem !== undefined) {
        return [durationMs, run, `the call of ${name} does not end: ${problem}`];
      }
      const { message } = run.response;
      if ('error' in message || message.result?.isError) {
        return [durationMs, run, `the call of ${name} fails: name a tool that runs long with --tool`];
      }
      return [durationMs, run, undefined];
    });
  }

  /** The undisturbed call, if it is long enough to be disturbed. */
  async long() {
    const [durationMs, run, problem] = await this.polled();
    if (problem !== undefined) {
      throw new NotChecked(problem);
    }
    if (durationMs < SHORTEST_CALL_MS) {
      const [name] = await this.tool();
      throw new NotChecked(
        `the call of ${name} takes less than ${SHORTEST_CALL_MS} ms: name a tool that runs long with --tool`,
      );
    }
    return [durationMs, run];
  }

  /** How long a request may take when it is disturbed. */
  patienceMs() {
    return this.timeoutMs + 2 * this.knownMs;
  }
}

/** What an answer has in it by itself. */
export async function settled(exchange) {
  await exchange.until(() => exchange.isOver, SETTLE_MS);
  return exchange;
}

/** An id of the same form that was never given: letters and digits of its first half are others. */
export function like(cursor) {
  const chars = [...cursor];
  if (chars.length < 8) {
    return '9'.repeat(9);
  }
  const half = Math.floor(chars.length / 2);
  return chars.map((char, index) => (index > 0 && index < half ? other(char) : char)).join('');
}

function other(char) {
  for (const [first, size] of [['a', 26], ['A', 26], ['0', 10]]) {
    const index = char.codePointAt(0) - first.codePointAt(0);
    if (index >= 0 && index < size) {
      return String.fromCodePoint(first.codePointAt(0) + ((index + size / 2) % size));
    }
  }
  return char;
}

// Words.

export function shownType(exchange) {
  return `${exchange.status} ${exchange.contentType}`.trim();
}

/** An answer in short. Comments come when they come, so they are left out. */
export function shown(exchange) {
  if (!exchange.isStream) {
    const code = exchange.json?.error?.code;
    return shownType(exchange) + (code === undefined ? '' : `, error ${code}`);
  }
  const words = exchange.events.map(described).filter((word, index, all) => word !== all[index - 1]);
  const ends = { open: 'stays open', end: 'end', broken: 'broken off', cut: 'cut' }[exchange.state];
  return [shownType(exchange), ...words, ends].join(', ');
}

function described(event) {
  const hasId = event.id === undefined ? ' without id' : '';
  if (event.data === undefined) {
    return event.id === undefined ? 'a lone retry' : 'a lone id';
  }
  if (event.data === '') {
    if (event.id === undefined) {
      return 'an empty event';
    }
    return event.retryMs === undefined ? 'priming without retry' : 'priming';
  }
  const { message } = event;
  if (message === undefined) {
    return `something else${hasId}`;
  }
  if ('method' in message) {
    return `${message.method}${hasId}`;
  }
  return message.error ? `error ${message.error.code}${hasId}` : `response${hasId}`;
}
