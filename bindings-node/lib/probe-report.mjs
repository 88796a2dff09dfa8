// Makes the checks one after the other, and says what came of them.
import { readFileSync } from 'node:fs';

import { Facts, NotChecked, Outcome, Unusable } from './probe-facts.mjs';
import { NoAnswer } from './probe-http.mjs';
import * as live from './probe-live.mjs';
import * as short from './probe-short.mjs';

const words = JSON.parse(readFileSync(new URL('probe.json', import.meta.url), 'utf8'));
export const CHECKS = words.checks;
export const USAGE = words.usage;
const OUTCOMES = ['ok', 'warn', 'fault', 'skipped'];
/** It waits longest and disturbs nothing, so it runs beside the others. */
const BESIDE = 'keep-alive';

/** What came of all. `exit` is the exit status. */
export class Report {
  server = {};
  revision = null;
  checks = [];
  sessions = 0;
  calls = 0;

  constructor(url) {
    this.url = url;
  }

  get counts() {
    return Object.fromEntries(
      OUTCOMES.map((outcome) => [outcome, this.checks.filter((finding) => finding.outcome === outcome).length]),
    );
  }

  get exit() {
    return this.counts.fault > 0 ? 1 : 0;
  }

  toJSON() {
    const { url, server, revision, checks, sessions, calls, counts, exit } = this;
    return { url, server, revision, checks, sessions, calls, counts, exit };
  }

  toText() {
    const about = Object.values(this.server).join(' ');
    const lines = [`${this.url}: ${[about, this.revision].filter(Boolean).join(', ')}`, ''];
    for (const { outcome, name, reason, title, requirement, evidence } of this.checks) {
      lines.push(`${outcome.padEnd(8)} ${name.padEnd(20)} ${reason}`);
      if (outcome === 'fault' || outcome === 'warn') {
        lines.push(...[`${title}: ${requirement}`, ...evidence].map((line) => `${' '.repeat(30)}${line}`));
      }
    }
    const counted = Object.entries(this.counts).map(([outcome, number]) => `${number} ${outcome}`);
    lines.push('', `${counted.join(', ')}; ${this.sessions} sessions, ${this.calls} calls of a tool`);
    return lines.join('\n');
  }
}

function find(name) {
  const camel = name.replace(/-(.)/g, (_, char) => char.toUpperCase());
  return short[camel] ?? live[camel];
}

/** One check: it ends in an outcome, whatever the server does. */
async function made(facts, check) {
  facts.evidence = [];
  const finding = (outcome, reason) => ({ ...check, outcome, reason, evidence: facts.evidence.map((say) => say()) });
  try {
    const { kind, reason } = await find(check.name)(facts);
    return finding(kind, reason);
  } catch (error) {
    if (error instanceof Outcome) {
      return finding(error.kind, error.reason);
    }
    if (error instanceof NotChecked) {
      return finding('skipped', error.message);
    }
    if (error instanceof NoAnswer) {
      return finding('fault', error.message);
    }
    throw error;
  }
}

/** Checks a server. Throws `Unusable` where there is none. */
export async function probe(options) {
  const facts = new Facts(options);
  const report = new Report(plain(options.url));
  try {
    try {
      const session = await facts.opening();
      report.server = facts.server;
      report.revision = session.revision;
    } catch (error) {
      if (error instanceof NoAnswer) {
        throw new Unusable(`not reachable: ${error.message}`);
      }
      // The check says so.
      if (!(error instanceof NotChecked)) {
        throw error;
      }
    }
    const wanted = CHECKS.filter(({ name }) => isWanted(name, options));
    const waiting = wanted.find(({ name }) => name === BESIDE);
    const beside = waiting && made(Object.create(facts), waiting);
    for (const check of wanted) {
      report.checks.push(check === waiting ? await beside : await made(facts, check));
    }
    const opened = facts.sessions.filter(({ revision, name }) => revision !== undefined && name !== 'unknown');
    report.sessions = opened.length;
    report.calls = facts.calls;
    return report;
  } finally {
    await leave(facts);
  }
}

/** Ends what was opened, as far as the server lets us. */
async function leave(facts) {
  for (const session of facts.sessions) {
    session.cut();
    if (session.id !== undefined && session.name !== 'unknown') {
      await session.delete().then((exchange) => exchange.cut(), () => {});
    }
  }
}

function isWanted(name, { only, skip }) {
  return (only.length === 0 || only.includes(name)) && !skip.includes(name);
}

/** The address without what may be secret in it. */
function plain(text) {
  const url = new URL(text);
  url.username = url.password = url.search = url.hash = '';
  return url.href;
}
