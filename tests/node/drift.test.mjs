// Tailrope under SDKs that differ from those it was written for, and beside others who change them, too.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { DRIFTS, OF_V1, OF_WEB } from './kit/drift.mjs';
import { installed, packages, root, run } from './kit/packed.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const HEAD = `
  import { Peer, counts, lastId, results } from './kit/raw.mjs';
  import { classes, logged, packages, serve } from '../servers/node/transports.mjs';
  const facts = {};
`;
const TAIL = `
  console.log(JSON.stringify({ ...facts, traced, anotherOption, logged: logged.filter((line) => line.startsWith('error')) }));
  process.exit();
`;

/** What a program says that runs with a changed SDK. */
function said(drift, code) {
  const env = { ...process.env, TAILROPE_TEST_DRIFT: drift };
  const flags = ['--import', './kit/drift.mjs', '--input-type=module', '-e'];
  const globals = 'const { traced = [], anotherOption = [] } = globalThis;';
  const program = `${HEAD}${code}${globals}${TAIL}`;
  const cwd = fileURLToPath(new URL('.', import.meta.url));
  const { stdout, stderr } = spawnSync(process.execPath, [...flags, program], { cwd, env, encoding: 'utf8' });
  assert.ok(stdout.startsWith('{'), stderr);
  return JSON.parse(stdout);
}

const resumes = (more) => `
  for (const line of ${JSON.stringify(LINES)}) {
    for (const web of [false, true]) {
      const server = await serve(line, { web, ${more} });
      const peer = await Peer.open(server.port);
      const before = await (await peer.script('emit 2', 'close', 'emit 1', 'return x')).rest();
      const after = await (await peer.resume(lastId(before))).untilTerminal();
      facts[line + (web ? ' web' : '')] = [counts([...before, ...after]), results(after)];
    }
  }
`;

// What Tailrope does not need, or finds again.
for (const drift of ['an option more', 'an attribute of another name', 'a wrapped method']) {
  test(`${drift} does no harm`, ours, () => {
    const { traced, anotherOption, logged, ...served } = said(
      drift,
      resumes(drift === 'an option more' ? 'another: 5' : ''),
    );
    assert.equal(Object.keys(served).length, 2 * LINES.length);
    for (const facts of Object.values(served)) {
      assert.deepEqual(facts, [[1, 2, 3], ['x']]);
    }
    assert.deepEqual(logged, []);
    if (drift === 'an option more') {
      // It reaches the SDK's class of each transport, and one for node:http has one for the web platform inside.
      assert.equal(anotherOption.filter((given) => given === 5).length, 3 * LINES.length);
    }
    if (drift === 'a wrapped method') {
      // The class of 1.x for node:http is one around the other.
      const expected = { v1: [OF_V1, OF_WEB, OF_WEB], v2: [OF_WEB, OF_WEB] };
      assert.deepEqual(
        traced,
        LINES.flatMap((line) => expected[line]),
      );
    }
  });
}

test('an SDK that does not fit keeps its own transports', ours, () => {
  const { logged, ...served } = said(
    'a function of another name',
    `
      for (const line of ${JSON.stringify(LINES)}) {
        const { configure, status } = packages[line];
        const server = await serve(line);
        const peer = await Peer.open(server.port);
        const answer = await peer.ask('return served');
        await serve(line);
        let raised;
        try {
          configure({ onUnsupported: 'raise' });
        } catch ({ code }) {
          raised = code;
        }
        facts[line] = [answer, packages[line].stats().sessions, raised, status()];
      }
    `,
  );
  assert.equal(logged.length, LINES.length);
  for (const [index, line] of LINES.entries()) {
    const [answer, sessions, raised, status] = served[line];
    assert.deepEqual([answer, sessions, raised, status.transport], ['served', 0, 'unsupported_sdk', null]);
    const name = line === 'v1' ? 'sdk 1' : 'server 2';
    assert.match(logged[index], new RegExp(`^error Tailrope does not fit under @modelcontextprotocol/${name}`));
    assert.match(
      logged[index],
      /\(supported: .* and later [12]\.x\): it has no isInitializeRequest\. .*cannot be resumed/,
    );
    assert.ok(status.notices.some((notice) => logged[index] === `error ${notice}`));
  }
});

test('each drift has a test', () => {
  assert.equal(Object.keys(DRIFTS).length, 4);
});

/** A program's folder with Tailrope and these packages of the SDKs; `change` may change their copies. */
function withSdks(name, sdks, change = () => {}) {
  const program = installed(name, ...packages);
  const scope = join(program, 'node_modules/@modelcontextprotocol');
  rmSync(scope);
  mkdirSync(scope);
  for (const sdk of sdks) {
    mkdirSync(join(scope, sdk));
    for (const part of readdirSync(join(root, 'node_modules/@modelcontextprotocol', sdk))) {
      symlinkSync(join(root, 'node_modules/@modelcontextprotocol', sdk, part), join(scope, sdk, part));
    }
  }
  change(scope);
  return program;
}

function setVersion(scope, sdk, version) {
  const file = join(scope, sdk, 'package.json');
  const manifest = JSON.parse(readFileSync(file, 'utf8'));
  rmSync(file);
  writeFileSync(file, JSON.stringify({ ...manifest, version }));
}

test('an SDK that is too old keeps its own transports, and the error names versions', ours, () => {
  const program = withSdks('old', ['sdk', 'server', 'node', 'core'], (scope) => {
    setVersion(scope, 'sdk', '1.29.4');
    setVersion(scope, 'server', '2.3.1');
  });
  const source = `
    import * as v1 from 'tailrope/mcp-v1';
    import * as v2 from 'tailrope/mcp';
    const sessionIdGenerator = () => 'one';
    new v1.StreamableHTTPServerTransport({ sessionIdGenerator });
    new v1.WebStandardStreamableHTTPServerTransport({ sessionIdGenerator });
    v2.createResumableMcpHandler(() => {});
    console.log(JSON.stringify(v2.status()));
  `;
  const { stdout, stderr } = run(program, 'a.mjs', source);
  const { sdk, transport } = JSON.parse(stdout);
  assert.deepEqual(
    [sdk, transport],
    [['@modelcontextprotocol/sdk 1.29.4', '@modelcontextprotocol/server 2.3.1'], null],
  );
  const lines = stderr.trim().split('\n');
  assert.equal(lines.length, 2, stderr);
  assert.match(
    lines[0],
    /under @modelcontextprotocol\/sdk 1\.29\.4 \(supported: @modelcontextprotocol\/sdk 1\.30 and later 1\.x\)/,
  );
  assert.match(
    lines[1],
    /under @modelcontextprotocol\/server 2\.3\.1 \(supported: .* 2\.4 and later 2\.x\): it is too old/,
  );
});

test('without a module that is used, the error names the version that is needed', ours, () => {
  const program = withSdks('older', [], (scope) => {
    // As up to 1.24.
    const [from, to] = [join(root, 'node_modules/@modelcontextprotocol/sdk'), join(scope, 'sdk')];
    mkdirSync(join(to, 'dist/esm/server'), { recursive: true });
    cpSync(join(from, 'package.json'), join(to, 'package.json'));
    for (const file of ['types.js', 'server/streamableHttp.js']) {
      symlinkSync(join(from, 'dist/esm', file), join(to, 'dist/esm', file));
    }
  });
  const { status, stderr } = run(program, 'a.mjs', "import 'tailrope/mcp-v1';");
  assert.equal(status, 1);
  assert.match(stderr, /webStandardStreamableHttp\.js' imported from .*sdk-1\.30-or-later\.mjs/);
});

test('without the package for node:http, the error names it', ours, () => {
  const { status, stderr } = run(withSdks('without', ['server', 'core']), 'a.mjs', "import 'tailrope/mcp';");
  assert.equal(status, 1);
  assert.match(stderr, /'@modelcontextprotocol\/node' imported from .*sdk-v2\.mjs/);
});
