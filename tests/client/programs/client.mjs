// Runs a plan with an official TypeScript client: node client.mjs v1|v2 [--line JSON] [URL PLAN]
//
// Without URL and PLAN it takes orders on stdin and ends with its input. Plans, orders and reports are those of
// client.py; `errors` is what the client told its onerror.
import { createInterface } from 'node:readline';

import { connect } from './connect.mjs';

const LIMIT_MS = 5_000;
const SETTLE_MS = 300;
const CLOSE_MS = 60_000;
// The plan's limit is the one that counts.
const LONG_MS = 600_000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const within = (ms, promise, late) => {
  let timer;
  const end = new Promise((resolve) => (timer = setTimeout(() => resolve(late), ms)));
  return Promise.race([promise, end]).finally(() => clearTimeout(timer));
};

/** A promise with the function that resolves it. */
function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { opened, open };
}

class Run {
  constructor(line, url, plan, ours) {
    Object.assign(this, { line, url, plan, ours, started: performance.now(), heard: () => {} });
    const streams = (plan.calls ?? []).map(({ stream }) => stream);
    this.begun = Object.fromEntries(streams.map((name) => [name, gate()]));
    this.over = Object.fromEntries(streams.map((name) => [name, gate()]));
    this.anyBegun = gate();
    this.report = { calls: {}, progress: {}, logs: [], asked: [], errors: [] };
  }

  get hooks() {
    const { report } = this;
    return {
      onLog: (data) => {
        report.logs.push(data);
        this.heard();
      },
      onAsk: (text) => {
        report.asked.push(text);
        return `re: ${text}`;
      },
      // A client that asks for ever must not fill the memory.
      onError: (error) => report.errors.length < 20 && report.errors.push(String(error?.message ?? error)),
    };
  }

  async call(connected, call) {
    const name = call.stream;
    await this.over[call.after]?.opened;
    await sleep(call.at_ms ?? 0);
    const seen = (this.report.progress[name] ??= []);
    const onprogress = ({ progress }) => {
      seen.push(progress);
      this.begun[name].open();
      this.anyBegun.open();
    };
    const options = { onprogress, timeout: LONG_MS };
    if (call.cancel_after_ms !== undefined) {
      const aborter = new AbortController();
      options.signal = aborter.signal;
      this.begun[name].opened.then(() => setTimeout(() => aborter.abort(), call.cancel_after_ms));
    }
    const params = { name: call.tool ?? 'run', arguments: call.arguments ?? { stream: name } };
    let outcome;
    try {
      const result = await connected.callTool(params, options);
      outcome = { [result.isError ? 'failure' : 'result']: result.content[0].text };
    } catch (error) {
      outcome = options.signal?.aborted ? { cancelled: true } : { error: error.message };
    }
    this.over[name].open();
    if (!this.isOver) {
      this.report.calls[name] = { ...outcome, at_ms: Math.round(performance.now() - this.started) };
    }
  }

  async stay(connected) {
    await Promise.all((this.plan.calls ?? []).map((call) => this.call(connected, call)));
    while (this.report.logs.length < (this.plan.logs ?? 0) && !this.isOver) {
      await new Promise((resolve) => (this.heard = resolve));
    }
    return true;
  }

  async closeEarly() {
    await this.anyBegun.opened;
    await sleep(this.plan.close_after_ms);
    return false;
  }

  async run() {
    const { plan, report } = this;
    let closingAt = performance.now();
    try {
      const connected = await connect(this.line, this.url, this.ours, this.hooks);
      report.revision = connected.revision;
      const closing = plan.close_after_ms === undefined ? [] : [this.closeEarly()];
      if (await within(plan.limit_ms ?? LIMIT_MS, Promise.race([this.stay(connected), ...closing]), false)) {
        await sleep(plan.settle_ms ?? SETTLE_MS);
      }
      this.isOver = true;
      for (const { stream } of plan.calls ?? []) {
        report.calls[stream] ??= { waiting: true, at_ms: Math.round(performance.now() - this.started) };
      }
      closingAt = performance.now();
      await connected.close();
    } catch (error) {
      report.fault = `${error.name}: ${error.message}`;
    }
    report.closed_ms = Math.round(performance.now() - closingAt);
    return report;
  }
}

async function bounded(line, url, plan, ours) {
  const run = new Run(line, url, plan, ours);
  const limit = (plan.limit_ms ?? LIMIT_MS) + CLOSE_MS;
  return (await within(limit, run.run(), undefined)) ?? { ...run.report, fault: `not closed after ${CLOSE_MS} ms` };
}

const [line, ...rest] = process.argv.slice(2);
const ours = rest[0] === '--line' ? JSON.parse(rest.splice(0, 2)[1]) : undefined;
// One plan's client must not take the others with it.
process.on('unhandledRejection', (error) => console.error('unhandled:', error));
if (rest.length > 0) {
  console.log(JSON.stringify(await bounded(line, rest[0], JSON.parse(rest[1]), ours), null, 2));
  process.exit();
}
for await (const text of createInterface(process.stdin)) {
  const { name, url, plan } = JSON.parse(text);
  void bounded(line, url, plan, ours).then((report) => console.log(JSON.stringify({ name, ...report })));
}
process.exit();
