// The tools of the test servers. `script` runs the steps that a test wrote down, so that a test reads as its own
// story; `act` hands its context to the test, which does with it what it likes.
import { openSync, writeSync } from 'node:fs';

import { McpServer as McpServerV1 } from '@modelcontextprotocol/sdk/server/mcp.js';
import { CreateMessageResultSchema, ElicitResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { McpServer as McpServerV2 } from '@modelcontextprotocol/server';
import { closeSSEStream, closeStandaloneSSEStream } from 'tailrope';
import * as z from 'zod';
import { sleep } from '../../node/kit/raw.mjs';
import { gate, isOpen, mark, marked, marks } from './control.mjs';
import { marked as runMarked } from './marked.mjs';
import { tasked } from './tasked.mjs';

const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };

/** `retry=MS hold=MS`, each or none, as options of a close. */
function pauses(rest) {
  const options = Object.fromEntries(rest.split(' ').map((part) => part.split('=')));
  return {
    retryMs: options.retry === undefined ? undefined : Number(options.retry),
    holdMs: options.hold === undefined ? undefined : Number(options.hold),
  };
}

/** A step's word and the rest. */
function divided(step) {
  const at = step.indexOf(' ');
  return at < 0 ? [step, ''] : [step.slice(0, at), step.slice(at + 1)];
}

const STEPS = {
  async emit(rest) {
    const [count, size] = rest.split(' ');
    const message = size === undefined ? undefined : 'x'.repeat(Number(size));
    for (let left = Number(count); left > 0; left--) {
      await this.ctx.progress(++this.sent, message);
    }
  },
  // What a killed process wrote to a file is there: what is in it was sent, as far as the tool was told.
  async note(rest) {
    const [file, size] = rest.split(' ');
    const message = size === undefined ? undefined : 'x'.repeat(Number(size));
    for (const noted = openSync(file, 'a'); ; ) {
      await this.ctx.progress(++this.sent, message);
      writeSync(noted, `${this.sent}\n`);
    }
  },
  // All sends are started before the first may finish, in order.
  async burst(rest) {
    await Promise.all(Array.from({ length: Number(rest) }, () => this.ctx.progress(++this.sent)));
  },
  async until(name) {
    while (!isOpen(name)) {
      await this.ctx.progress(++this.sent);
      await sleep(1);
    }
    this.result = String(this.sent);
  },
  gate(name) {
    return gate(name, this.ctx.signal);
  },
  // Holds the interpreter for so long at a time, and tells how often.
  async hog(rest) {
    const [span, name] = divided(rest);
    let held = 0;
    for (; !isOpen(name); held++) {
      const over = performance.now() + Number(span);
      while (performance.now() < over);
      await new Promise(setImmediate);
    }
    this.result = String(held);
  },
  mark,
  close(rest) {
    this.ctx.close(pauses(rest));
  },
  close_standalone() {
    this.ctx.closeStandalone();
  },
  standalone(text) {
    return this.ctx.standalone(text);
  },
  log(text) {
    return this.ctx.log(text);
  },
  changed() {
    return this.ctx.changed();
  },
  async elicit(message) {
    const { content } = await this.ctx.elicit({ mode: 'form', message, requestedSchema });
    this.result = JSON.stringify(content);
  },
  async sample(text) {
    const messages = [{ role: 'user', content: { type: 'text', text } }];
    const { content } = await this.ctx.sample({ messages, maxTokens: 10 });
    this.result = content.text;
  },
  sleep(rest) {
    return sleep(Number(rest));
  },
  async wait_cancel() {
    mark('waiting');
    await new Promise((resolve) => this.ctx.signal.addEventListener('abort', resolve));
  },
  raise(text) {
    throw new Error(text);
  },
  big(rest) {
    this.result = 'b'.repeat(Number(rest));
  },
  return(text) {
    this.result = text;
  },
};

/**
 * One call's steps: emit N [BYTES], note FILE [BYTES], burst N, until GATE, gate NAME, hog MS GATE, mark NAME,
 * close [retry=] [hold=], close_standalone, standalone TEXT, log TEXT, changed, elicit TEXT, sample TEXT, sleep MS, wait_cancel,
 * raise TEXT, big BYTES, return TEXT, and `try` before any of them.
 */
async function script(steps, ctx) {
  const run = { ctx, sent: 0, result: undefined };
  const outcomes = [];
  ctx.signal.addEventListener('abort', () => mark(`cancelled ${steps.at(-1)}`));
  for (const step of steps) {
    const isTried = step.startsWith('try ');
    const [word, rest] = divided(isTried ? step.slice(4) : step);
    if (!isTried) {
      await STEPS[word].call(run, rest);
      continue;
    }
    try {
      await STEPS[word].call(run, rest);
      outcomes.push('ok');
    } catch (error) {
      outcomes.push(`raised ${error.name}: ${error.message}`);
    }
  }
  mark(`finished ${steps.at(-1)}`);
  return run.result ?? (outcomes.length > 0 ? JSON.stringify(outcomes) : 'done');
}

const actors = new Map();

/** The context of the call of `act` by this name, once it runs. */
export async function acting(name) {
  await marked(`acting ${name}`);
  return actors.get(name).ctx;
}

/** Has the call of `act` by this name do a step: its outcome, or why it was refused. */
export async function order(name, step) {
  try {
    return { outcome: (await actors.get(name).perform(step)) ?? null };
  } catch (error) {
    return { raised: `${error.name}: ${error.message}` };
  }
}

const ACTS = {
  standalone: (ctx, text) => ctx.standalone(text),
  // The request's type and id, then the text: `n:1 hello`.
  related(ctx, rest) {
    const [, type, id, text] = /^([ns]):(.*) (\S+)$/s.exec(rest);
    return ctx.related(type === 'n' ? Number(id) : id, text);
  },
  close: (ctx, rest) => closeSSEStream(ctx.extra, pauses(rest)),
  close_standalone: (ctx, rest) => closeStandaloneSSEStream(ctx.extra, pauses(rest)),
  respond() {},
};

/** Does `steps` at once, then what is ordered, until that is `respond` or the gate of its name opens. */
async function act(name, steps, ctx) {
  let respond;
  const responded = new Promise((resolve) => (respond = resolve));
  async function perform(step) {
    const [word, rest] = divided(step);
    const outcome = await ACTS[word](ctx, rest);
    if (word === 'respond') {
      respond();
    }
    return outcome;
  }
  for (const step of steps) {
    await perform(step);
  }
  actors.set(name, { ctx, perform });
  mark(`acting ${name}`);
  await Promise.race([responded, gate(name, ctx.signal)]);
  return name;
}

const text = (words) => ({ content: [{ type: 'text', text: words }] });
const info = { name: 'test', version: '1' };
const capabilities = { capabilities: { logging: {} } };

function progressParams(meta, progress, message, total) {
  const token = { progressToken: meta?.progressToken ?? 0 };
  return { ...token, progress, ...(message !== undefined && { message }), ...(total !== undefined && { total }) };
}

/** What the contexts of the two SDK lines have in common: how their handlers say and ask. */
function face({ notify, ask, standalone, changed, meta, ...more }) {
  return {
    notify,
    progress: (count, message, total) =>
      notify({ method: 'notifications/progress', params: progressParams(meta, count, message, total) }),
    log: (data) => notify({ method: 'notifications/message', params: { level: 'info', data } }),
    elicit: (params) => ask({ method: 'elicitation/create', params }, ElicitResultSchema),
    sample: (params) => ask({ method: 'sampling/createMessage', params }, CreateMessageResultSchema),
    standalone,
    changed,
    ...more,
  };
}

/** A notification for a request that need not be the one whose handler sends it. */
function sendRelated(server, relatedRequestId, data) {
  const message = { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data } };
  return server.server.transport.send(message, { relatedRequestId });
}

const builders = {
  v1() {
    const server = new McpServerV1(info, capabilities);
    const contextOf = (extra) =>
      face({
        extra,
        id: extra.requestId,
        signal: extra.signal,
        meta: extra._meta,
        notify: (notification) => extra.sendNotification(notification),
        ask: (request, schema) => extra.sendRequest(request, schema),
        standalone: (data) => server.server.sendLoggingMessage({ level: 'info', data }),
        related: (id, data) => sendRelated(server, id, data),
        user: extra.authInfo?.clientId,
        changed: () => server.server.sendToolListChanged(),
        close: (options) => extra.closeSSEStream?.(options),
        closeStandalone: () => extra.closeStandaloneSSEStream?.(),
        header: (name) => extra.requestInfo.headers[name] ?? '',
      });
    return { server, contextOf, schema: (shape) => shape };
  },
  v2() {
    const server = new McpServerV2(info, capabilities);
    const contextOf = (ctx) =>
      face({
        extra: ctx,
        id: ctx.mcpReq.id,
        signal: ctx.mcpReq.signal,
        meta: ctx.mcpReq._meta,
        notify: (notification) => ctx.mcpReq.notify(notification),
        // `elicitInput` of this line asks on the standalone stream.
        ask: (request) => ctx.mcpReq.send(request),
        standalone: (data) =>
          server.server.notification({ method: 'notifications/message', params: { level: 'info', data } }),
        related: (id, data) => sendRelated(server, id, data),
        user: ctx.http.authInfo?.clientId,
        changed: () => server.server.sendToolListChanged(),
        close: (options) => ctx.http.closeSSE?.(options),
        closeStandalone: () => ctx.http.closeStandaloneSSE?.(),
        header: (name) => ctx.http.req.headers.get(name) ?? '',
      });
    return { server, contextOf, schema: (shape) => z.object(shape) };
  },
};

/** A server with the tools. */
export function buildServer(line) {
  const { server, contextOf, schema } = builders[line]();
  const tool = (name, shape, run) =>
    server.registerTool(name, { inputSchema: schema(shape) }, async (args, extra) =>
      text(await run(args, contextOf(extra))),
    );
  tool('script', { steps: z.array(z.string()) }, ({ steps }, ctx) => script(steps, ctx));
  tool('echo', { text: z.string() }, ({ text }) => text);
  tool('act', { name: z.string(), steps: z.array(z.string()).default([]) }, ({ name, steps }, ctx) =>
    act(name, steps, ctx),
  );
  tool('marked', { plan: z.record(z.string(), z.any()) }, ({ plan }, ctx) => runMarked(plan, ctx));
  if (line === 'v2') {
    const inputSchema = schema({ plan: z.record(z.string(), z.any()) });
    server.registerTool('tasked', { inputSchema }, ({ plan }, ctx) => tasked(plan, ctx));
  }
  tool('header', { name: z.string() }, ({ name }, ctx) => ctx.header(name));
  tool('request_id', {}, (_, ctx) => JSON.stringify(ctx.id));
  tool('whoami', {}, (_, ctx) => ctx.user ?? 'nobody');
  // These three are for the load client of the benchmarks (benches/client).
  tool('emit', { n: z.number(), bytes: z.number() }, async ({ n, bytes }, ctx) => {
    for (let number = 1; number <= n; number++) {
      await ctx.progress(number, 'x'.repeat(bytes), n);
    }
    mark('emitted');
    return String(n);
  });
  tool('completed', {}, () => String(marks().emitted ?? 0));
  tool('poll', { before: z.number(), after: z.number() }, async ({ before, after }, ctx) => {
    for (let number = 1; number <= before + after; number++) {
      await ctx.progress(number, undefined, before + after);
      if (number === before) {
        ctx.close();
      }
    }
    return 'done';
  });
  return server;
}

/** Connects a server with the tools to a transport. */
export async function connectServer(line, transport) {
  const server = buildServer(line);
  await server.connect(transport);
  return server;
}
