// Runs the fault tests against the SDKs' own transports and ours, and writes docs/stock-faults-node.md.
//
//     node tests/node/table.mjs [--transport stock|tailrope] [--out FILE]
//
// In a stock run a failed test is a result. A fault counts as present when any of its tests fails. It takes some
// minutes, because stock servers that never answer are waited for.
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const here = fileURLToPath(new URL('.', import.meta.url));
const root = fileURLToPath(new URL('../../', import.meta.url));

const FAULTS = {
  'F-01': "Another session's tool result is replayed",
  'F-02': "Another session's notifications on the standalone stream",
  'F-03': 'A foreign event id opens the stream',
  'F-05': 'A session id of another principal opens the session',
  'F-08': 'Repeated id in flight silences the first call',
  'F-09': 'A request id captures the standalone stream',
  'F-10': 'Events emitted during a replay are lost',
  'F-12': 'Wire order differs from emission order',
  'F-16': 'A result made while disconnected is lost',
  'F-19': 'Unknown cursor: no answer that ends the call',
  'F-20': 'Trimmed history: left out in silence, or nothing at all',
  'F-22': 'Client leaving during replay leaves a stale reader',
  'F-23': 'A resumed stream never ends after the response',
  'F-24': 'No id before the first message of a call',
  'F-25': 'The standalone stream starts without an id',
  'F-26': 'A resume that delivers nothing gives no id',
  'F-28': 'Control rows in a replay break or pollute it',
  'F-30': 'Reconnect refused because of a dead socket',
  'F-31': 'Second resume refused, or events go elsewhere',
  'F-32': 'Two readers evict each other, or ask, for ever',
  'F-44': 'SIGTERM hangs or cuts the open streams',
  'F-50': 'Sessions without DELETE never end',
  'F-51': 'A session with running work is reaped',
  'F-54': 'The event log outlives its session',
  'F-56': 'One stalled reader stalls the other calls',
  'F-57': 'A slow reader costs memory or blocks',
  'F-58': 'One failed store write silences the session',
  'F-59': 'Store fails on the result: client waits for ever',
  'F-60': 'A too large result vanishes without an error',
  'F-61': 'Line separators go raw onto the wire',
  'F-73': 'Client reconnects to a lost stream for ever',
  'F-77': 'Priming reaches clients that cannot parse it',
};
const LINES = { v1: 'sdk 1.x', v2: 'server 2.x' };

/** Runs the fault tests of a line once: fault -> [passed, all]. */
async function run(transport, line) {
  const files = readdirSync(here).filter((name) => name.endsWith('.test.mjs') && name !== 'examples.test.mjs');
  const reporter = `--test-reporter=${here}kit/report.mjs`;
  const options = ['--test', '--test-force-exit', reporter, '--test-name-pattern=^f\\d\\d '];
  const child = spawn(process.execPath, [...options, ...files], {
    cwd: here,
    env: { ...process.env, TAILROPE_TEST_TRANSPORT: transport, TAILROPE_TEST_LINES: line },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const counts = new Map();
  for await (const text of createInterface(child.stdout)) {
    const { name, passed, skipped } = JSON.parse(text);
    const found = /^f(\d\d) /.exec(name);
    if (found === null || skipped) {
      continue;
    }
    const [good, all] = counts.get(`F-${found[1]}`) ?? [0, 0];
    counts.set(`F-${found[1]}`, [good + (passed ? 1 : 0), all + 1]);
    if (transport === 'tailrope' && !passed) {
      console.error(`tailrope ${line} fails: ${name}`);
    }
  }
  return counts;
}

function cell(counts) {
  if (counts === undefined) {
    return '-';
  }
  const [passed, all] = counts;
  return passed === all ? 'ok' : `**fails** ${all - passed}/${all}`;
}

function versions() {
  const packages = ['@modelcontextprotocol/sdk', '@modelcontextprotocol/server', '@modelcontextprotocol/node'];
  const found = packages.map((name) => {
    const { version } = JSON.parse(readFileSync(`${root}node_modules/${name}/package.json`));
    return `${name} ${version}`;
  });
  const { version } = JSON.parse(readFileSync(`${root}package.json`));
  return `${found.join(', ')}, tailrope ${version}, Node ${process.versions.node}`;
}

function page(counts) {
  const columns = Object.keys(LINES).map((line) => `stock ${LINES[line]}`);
  const ours = (fault) => {
    const lines = Object.keys(LINES).map((line) => counts[`tailrope ${line}`]?.get(fault));
    return lines.reduce((sum, found) => (found && sum ? found.map((count, at) => count + sum[at]) : found ?? sum));
  };
  const rows = Object.entries(FAULTS).map(([fault, words]) => {
    const stock = Object.keys(LINES).map((line) => cell(counts[`stock ${line}`]?.get(fault)));
    return `| ${fault} | ${words} | ${stock.join(' | ')} | ${cell(ours(fault))} |`;
  });
  return `# Faults of the stock transports in Node

Each fault has tests of its own, named after it, in \`tests/node\`. They start a server and talk to it over HTTP, with
a raw client and with the SDK's own of the same line. This table is the outcome of running them on the SDKs' own
transports for \`node:http\`, with a plain in-memory event store for all sessions (\`tests/node/kit/stores.mjs\`), and on
Tailrope:

\`\`\`sh
node tests/node/table.mjs
\`\`\`

The command writes this file; do not edit it. This run had

- ${versions()}

\`**fails** 2/3\`: two of the fault's three tests fail: they saw what the row names, or waited in vain for what they
expect. \`ok\`: all pass; of a stock transport that says no more than that they did not provoke the fault. \`-\`: none of
them applies.

| fault | what goes wrong | ${columns.join(' | ')} | tailrope (both) |
|---|---|${'---|'.repeat(columns.length + 1)}
${rows.join('\n')}
`;
}

const { values } = parseArgs({
  options: {
    transport: { type: 'string', multiple: true, default: ['stock', 'tailrope'] },
    out: { type: 'string', default: `${root}docs/stock-faults-node.md` },
  },
});
const counts = {};
for (const transport of values.transport) {
  // A stock run mostly waits.
  const runs = Object.keys(LINES).map(async (line) => (counts[`${transport} ${line}`] = await run(transport, line)));
  await Promise.all(runs);
}
const unknown = Object.values(counts).flatMap((found) => [...found.keys()].filter((fault) => !(fault in FAULTS)));
if (unknown.length > 0) {
  throw new Error(`no words for ${unknown}`);
}
writeFileSync(values.out, page(counts));
const faulty = ['tailrope v1', 'tailrope v2'].some((name) =>
  [...(counts[name]?.values() ?? [])].some(([passed, all]) => passed < all),
);
process.exitCode = faulty ? 1 : 0;
