// `tailrope probe`: what it finds in a correct server, in faulty ones, and in ours. tests/vectors/probe.json says what that
// is; tests/python/test_probe.py holds the Python package to the same, and probes more servers.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual, promisify } from 'node:util';
import { after, before, describe } from 'node:test';

import { CHECKS, USAGE, probe } from '../../bindings-node/lib/probe-report.mjs';
import { main } from '../../bindings-node/lib/probe-cli.mjs';
import { serveFor } from '../servers/node/transports.mjs';
import { LINES, full, ours, test } from './kit/test.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const vectors = JSON.parse(readFileSync(join(root, 'tests/vectors/probe.json'), 'utf8'));
// Of each kind of findings one: the Python package is asked about more.
const SOME = new Set([
  'a correct server',
  '2026-07-28 is served too',
  'no retry',
  'a resume swaps events',
  'no tools',
  'sessions do not end',
]);
const AT_ONCE = 4;
// What a probe sees of a server that lasts half a second depends on when it is there. A fault that it misses each time,
// and alone, is missed.
const TRIES = 3;
// They run side by side, so each may take what all take.
const limits = { ...ours, timeout: 90_000 };

/** The process with all the faulty servers; it needs nothing but Python. */
async function startFaulty(...args) {
  const own = join(root, '.venv/mcp2/bin/python');
  const command = existsSync(own) ? own : 'python3';
  const child = spawn(command, ['-m', 'raw_server.faulty', ...args], {
    cwd: join(root, 'tests/client'),
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const [line] = await once(createInterface(child.stdout), 'line');
  const port = line.split(' ')[1];
  return {
    /** The server with these faults that is the named test's own. */
    url: (faults, name, scheme = 'http') => `${scheme}://127.0.0.1:${port}/${name}/${faults}`,
    async stop() {
      child.stdin.end();
      await once(child, 'exit');
    },
  };
}

let faulty;
before(async () => {
  faulty = await startFaulty();
});
after(() => faulty?.stop());

/** The options of a probe, whose names in the vectors are Python's. */
function optionsOf(url, { timeout_ms: timeoutMs, idle_ms: idleMs, only = [], skip = [], ...rest }) {
  return { url, headers: {}, timeoutMs, idleMs, only, skip, ...rest };
}

const found = (report) =>
  Object.fromEntries(report.checks.map(({ name, outcome, reason, evidence }) => [name, { outcome, reason, evidence }]));
const failing = (report) => report.checks.filter(({ outcome }) => outcome === 'fault').map(({ name }) => name);

/** Runs the command. */
async function run(words, env = {}) {
  const child = spawn(process.execPath, [join(root, 'bindings-node/lib/cli.mjs'), ...words], {
    env: { ...process.env, ...env },
  });
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text) => (stderr += text));
  const [status] = await once(child, 'close');
  return { status, stdout, stderr };
}

/** Runs the command in this process: its exit status, and what it prints. */
async function said(words) {
  const out = [];
  const err = [];
  const status = await main(words, { log: (text) => out.push(text), error: (text) => err.push(text) });
  return { status, out: out.join('\n'), err: err.join('\n') };
}

// Side by side: they mostly wait.
describe('probe', { concurrency: 3 }, () => {
  test('both packages have the words of the vectors', ours, () => {
    assert.deepEqual({ usage: USAGE, checks: CHECKS }, { usage: vectors.usage, checks: vectors.checks });
  });

  const findOut = (servers) => async () => {
    const left = [...servers];
    const again = [];
    const findingsOf = async ({ faults, findings }, name) => {
      const only = Object.keys(findings);
      return found(await probe(optionsOf(faulty.url(faults, name), { ...vectors.options, only })));
    };
    const work = async () => {
      for (let server = left.shift(); server !== undefined; server = left.shift()) {
        const seen = await findingsOf(server, 'node');
        if (!isDeepStrictEqual(seen, server.findings)) {
          again.push({ server, seen });
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    for (let { server, seen } of again) {
      for (let number = 1; number < TRIES && !isDeepStrictEqual(seen, server.findings); number++) {
        seen = await findingsOf(server, `node-${number}`);
      }
      assert.deepEqual(seen, server.findings, server.name);
    }
  };

  const some = vectors.servers.filter(({ name }) => SOME.has(name));
  test('some faulty servers are found out', limits, findOut(some));
  test('each faulty server is found out', { ...limits, ...full }, findOut(vectors.servers));

  const probed = (port, more) => probe(optionsOf(`http://127.0.0.1:${port}/mcp`, { ...vectors.call, ...more }));

  for (const line of LINES) {
    test(`our servers have no fault: ${line}`, limits, async (t) => {
      const server = await serveFor(t, line, { keepAliveMs: 200 });
      const steps = ['sleep 100', 'close', 'sleep 300', 'return x'];
      const [whole, early] = await Promise.all([
        probed(server.port, vectors.ours),
        probed(server.port, { ...vectors.ours, arguments: { steps }, only: ['early-close'] }),
      ]);
      assert.deepEqual(failing(whole), [], whole.toText());
      const other = whole.checks.filter(({ outcome }) => outcome !== 'ok').map(({ name }) => name);
      assert.deepEqual(other, ['early-close'], whole.toText());
      assert.equal(found(early)['early-close'].outcome, 'ok', early.toText());
    });
  }

  test('JSON says all, and the exit status is 1 where there are faults', limits, async () => {
    const words = ['probe', faulty.url('unknown-404', 'json'), '--json', '--only', 'ping,made-up-cursor'];
    const { status, stdout, stderr } = await run(words);
    const report = JSON.parse(stdout);
    assert.deepEqual([status, stderr, report.exit], [1, '', 1]);
    const keys = ['url', 'server', 'revision', 'checks', 'sessions', 'calls', 'counts', 'exit'];
    assert.deepEqual(Object.keys(report), keys);
    assert.deepEqual(report.counts, { ok: 1, warn: 0, fault: 1, skipped: 0 });
    for (const check of report.checks) {
      assert.deepEqual(Object.keys(check), ['name', 'title', 'requirement', 'outcome', 'reason', 'evidence']);
    }
  });

  test('text shows faults with what was seen', limits, async () => {
    const url = faulty.url('unknown-404', 'text');
    const { status, out } = await said(['probe', url, '--only=ping', '--only=made-up-cursor']);
    assert.equal(status, 1);
    assert.deepEqual(out.split('\n').slice(1), vectors.text);
  });

  test('the exit status is 0 without faults, and headers are sent but never printed', limits, async () => {
    // Without the header this server answers 401.
    const url = `${faulty.url('guarded', 'headers')}?key=hunter2`;
    for (const more of [[], ['--json']]) {
      const words = ['--header', 'Authorization: Bearer hunter2', '--only', 'initialize,ping', ...more];
      const { status, out, err } = await said(['probe', url, ...words]);
      assert.deepEqual([status, err], [0, '']);
      assert.ok(!out.includes('hunter2'));
    }
    const { status, out, err } = await said(['probe', url]);
    assert.deepEqual([status, out], [2, '']);
    assert.match(err, /answered 401/);
  });

  test('wrong usage is told with exit status 2', limits, async () => {
    for (const { words, told } of vectors.misuse) {
      const err = [`tailrope: ${told}`, '', ...USAGE].join('\n');
      assert.deepEqual(await said(words), { status: 2, out: '', err });
    }
  });

  test('what is no MCP server is told with exit status 2', limits, async () => {
    const silent = await said(['probe', 'http://127.0.0.1:1/mcp']);
    assert.deepEqual([silent.status, silent.out], [2, '']);
    assert.match(silent.err, /not reachable/);
    const told = 'no MCP server for us: initialize is answered 404 application/json, error -32000';
    const other = await said(['probe', faulty.url('no-mcp', 'other')]);
    assert.deepEqual(other, { status: 2, out: '', err: `tailrope: ${told}` });
  });

  test('TLS', limits, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'tailrope-probe-'));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    const [both, certificate] = [join(folder, 'both.pem'), join(folder, 'cert.pem')];
    const what = ['-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1'];
    const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', ...what, '-keyout', both, '-out', certificate];
    await promisify(execFile)('openssl', made);
    writeFileSync(both, readFileSync(both, 'utf8') + readFileSync(certificate, 'utf8'));
    const servers = await startFaulty(both);
    t.after(() => servers.stop());
    const only = 'priming,resume-finished,takeover-standalone';
    const words = ['probe', servers.url('', 'tls', 'https'), '--only', only];
    const trusted = await run(words, { NODE_EXTRA_CA_CERTS: certificate });
    assert.equal(trusted.status, 0, trusted.stdout + trusted.stderr);
    const refused = await run(words);
    assert.equal(refused.status, 2);
    assert.match(refused.stderr, /not reachable/);
  });
});
